"""What a mutant is: one small change of one file's syntax tree."""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLIPS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
SWAPS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# What only gets another type is mypy's business.
TYPED = ("bool", "float", "int", "str", "list", "tuple")
SMALL = 1e-3
LARGE = 50  # one more of so many is no mistake that counts, a tenth of them is
CONDITIONAL = (ast.If, ast.While, ast.IfExp)
DROPPED = (ast.AugAssign, ast.Delete, ast.Raise)
# Annotations and decorators say what mypy and dataclasses check; the words of errors and of f-strings are not behaviour.
UNTOUCHED = {"annotation", "returns", "decorator_list", "exc", "cause", "msg"}
SEEDED = ("torch.Generator().manual_seed(", "Memory.fresh(")
# The order of what these are given does not matter, or mypy knows it.
UNORDERED = ("isinstance", "issubclass", "getattr", "max", "min", "same")
UNORDERED += ("torch.equal", "torch.logaddexp", "torch.allclose", "torch.maximum", "torch.minimum", "torch.promote_types")


@dataclass(frozen=True)
class Mutant:
    """One change of a file; `place` is the innermost function around it, "" if it runs when the file is imported."""

    path: str
    number: int
    line: int
    place: str
    change: str

    @property
    def name(self) -> str:
        """What stays the same when lines move."""
        return f"{self.place or '<module>'}: {self.change}"


def mutants_of(root: Path, path: str) -> list[Mutant]:
    """All mutants of a file."""
    found, seen = [], Counter[tuple[str, str]]()
    for number, spot in enumerate(_spots(_parsed(root / path))):
        change = spot.change()
        seen[spot.place, change] += 1
        times = seen[spot.place, change]
        found.append(Mutant(path, number, spot.old.lineno, spot.place, change if times == 1 else f"{change} ({times})"))
    return found


def mutated(root: Path, mutant: Mutant) -> ast.Module:
    """The syntax tree of the file with the change."""
    tree = _parsed(root / mutant.path)
    spot = list(_spots(tree))[mutant.number]
    spot.put(spot.new)
    return ast.fix_missing_locations(tree)


@dataclass(frozen=True)
class _Spot:
    """A node in its parent's field or list, and what could stand there."""

    parent: ast.AST
    where: Any
    key: Any
    old: Any
    new: ast.AST
    place: str

    def put(self, node: ast.AST) -> None:
        if isinstance(self.where, list):
            self.where[self.key] = node
        else:
            setattr(self.where, self.key, node)

    def change(self) -> str:
        """Before and after; a constant is shown with what is around it."""
        if not (isinstance(self.old, ast.Constant) and isinstance(self.parent, ast.expr | ast.keyword | ast.AnnAssign)):
            return f"{_text(self.old)} -> {_text(self.new)}"
        before = _text(self.parent)
        self.put(self.new)
        after = _text(self.parent)
        self.put(self.old)
        return f"{before} -> {after}"


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _spots(tree: ast.Module) -> Iterator[_Spot]:
    modules = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    yield from _below(tree, "", "", modules)


def _below(node: ast.AST, place: str, inside: str, modules: set[str]) -> Iterator[_Spot]:
    """Spots under a node; `place`: the function whose running reaches them, `inside`: the qualified name so far."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    for field, value in ast.iter_fields(node):
        if field in UNTOUCHED:
            continue
        here, within = place, inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and field == "body":
            here = inside + node.name
            within = f"{here}.<locals>."
        elif isinstance(node, ast.ClassDef) and field == "body":
            within = f"{inside}{node.name}."
        children = list(enumerate(value)) if isinstance(value, list) else [(field, value)]
        for key, child in children:
            if not isinstance(child, ast.AST) or _is_text(child) or _is_guard(child):
                continue
            where = value if isinstance(value, list) else node
            for new in _instead(node, field, child, modules):
                yield _Spot(node, where, key, child, new, here)
            yield from _below(child, here, within, modules)


def _is_text(node: ast.AST) -> bool:
    """Docstrings, f-strings and what is noted for developers; a warning may be dropped, but its words are no behaviour."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _logs(node.value, ("debug", "info"))
    return isinstance(node, ast.JoinedStr) or _logs(node, ("warning", "error"))


def _logs(node: ast.AST, levels: tuple[str, ...]) -> bool:
    return isinstance(node, ast.Call) and any(ast.unparse(node.func) == f"log.{level}" for level in levels)


def _is_guard(node: ast.AST) -> bool:
    """What makes no difference in right code: an assertion, what only saves time, the order of equals, which seed is fixed."""
    if isinstance(node, ast.keyword):
        return node.arg in ("strict", "tie_weights", "stable")
    return isinstance(node, ast.Call) and ast.unparse(node).startswith(SEEDED)


def _instead(parent: ast.AST, field: str, node: ast.AST, modules: set[str]) -> Iterator[ast.AST]:
    """What could stand in place of a node."""
    if field == "test" and isinstance(parent, CONDITIONAL) and not isinstance(node, ast.Compare):
        yield ast.UnaryOp(ast.Not(), node)
    if isinstance(parent, ast.comprehension) and field == "ifs" and not isinstance(node, ast.Compare):
        yield ast.UnaryOp(ast.Not(), node)
    if isinstance(parent, ast.Return) and not (isinstance(node, ast.Constant) and node.value is None):
        yield ast.Constant(None)
    match node:
        case ast.Compare(ops=[op]):
            for other in FLIPS[type(op)][_is_tolerance(node) :]:
                yield _with(node, ops=[other()])
        case ast.BinOp() if type(node.op) in SWAPS:
            yield _with(node, op=SWAPS[type(node.op)]())
        case ast.AugAssign() if type(node.op) in SWAPS:
            yield _with(node, op=SWAPS[type(node.op)]())
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int(number)) if number >= LARGE:
            yield ast.Constant(number // 10)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)  # twice a tolerance of 1e-8 is not wrong, 1 + 1e-8 is
        case ast.Call():
            yield from _calls(node, modules, whole=isinstance(parent, ast.Expr))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
    if isinstance(node, DROPPED) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass()
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
        yield ast.Pass()


def _is_tolerance(node: ast.Compare) -> bool:
    """Whether one side is a number such as 1e-12, which no other meets exactly, so that its boundary does not matter."""
    sides = (node.left, *node.comparators)
    return any(isinstance(one, ast.Constant) and isinstance(one.value, float) and 0 < one.value < SMALL for one in sides)


def _calls(call: ast.Call, modules: set[str], *, whole: bool) -> Iterator[ast.AST]:
    """A call whose first two arguments are swapped, or that is left out (by itself a statement: dropped elsewhere)."""
    plain = not any(isinstance(arg, ast.Starred) for arg in call.args)
    pair = call.args[:2] if plain and ast.unparse(call.func) not in UNORDERED else []
    if len(pair) == 2 and ast.dump(pair[0]) != ast.dump(pair[1]):
        yield _with(call, args=[*reversed(pair), *call.args[2:]])
    function = call.func
    if whole:
        return
    if isinstance(function, ast.Attribute) and not (isinstance(function.value, ast.Name) and function.value.id in modules):
        if not _is_same(call, function.attr):
            yield function.value
    elif plain and len(call.args) == 1 and not call.keywords and not _is_conversion(ast.unparse(function), call.args[0]):
        yield call.args[0]


def _is_same(call: ast.Call, method: str) -> bool:
    """x.cpu() and x.to(device): on a CPU, where the tests run, both are x; x.item() is the same number."""
    if method in ("cpu", "item"):
        return True
    to = call.args[0] if method == "to" and len(call.args) == 1 and not call.keywords else None
    return to is not None and ast.unparse(to).rpartition(".")[2] == "device"


def _is_conversion(function: str, of: ast.expr) -> bool:
    """Whether only the type changes: int() cuts nothing off a result, list() and tuple() copy nothing that others hold."""
    if function == "int":
        return not any(isinstance(node, ast.BinOp) for node in ast.walk(of))
    if function in ("list", "tuple"):
        return not isinstance(of, ast.Name | ast.Attribute)
    return function in TYPED


def _with(node: ast.AST, **fields: object) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other
