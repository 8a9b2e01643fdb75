"""The spec parser: what it accepts, and that nothing else gets through."""

import contextlib
import keyword
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from fl_app.core import spec
from fl_app.core.parsing import MAX_LENGTH
from fl_app.core.spec import Checked, SpecError


@dataclass(frozen=True, kw_only=True)
class Thing(Checked):
    """A thing."""

    p: Annotated[float, Field(gt=0, le=1)] = 0.5
    mode: Literal["a", "b"] = "a"
    sigma: float | Literal["match"] = 0.1
    at: tuple[int, ...] = ()


THINGS = {"thing": Thing, "other": Thing}
names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: not keyword.iskeyword(name))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
parts = st.lists(st.tuples(names, st.dictionaries(names, values, max_size=3)), min_size=1, max_size=4)


@given(parts)
def test_what_is_written_is_what_is_read(wanted):
    text = " + ".join(f"{name}({', '.join(f'{k}={v!r}' for k, v in kv.items())})" for name, kv in wanted)
    if len(text) > MAX_LENGTH:
        return
    assert [(part.name, part.settings) for part in spec.parse(text)] == wanted


@settings(max_examples=400)
@given(
    st.text(alphabet="abp_()+=,'\"[]{}0.5-*: \n\\x00#@lambda", max_size=60)
    | st.text(max_size=40)
    | st.binary(max_size=40).map(repr)
)
def test_any_text_is_a_spec_or_a_spec_error(text):
    with contextlib.suppress(SpecError):
        spec.build_one("thing", text, THINGS)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "thing(p=__import__('os').system('true'))",
        "thing(p=(lambda: 1)())",
        "thing(**{'p': 1})",
        "thing(p=open('x'))",
        "thing.p",
        "thing(p=1)(p=1)",
        "[thing for thing in ()]",
        "(" * 500 + "thing" + ")" * 500,
        "thing" + "+thing" * 1000,
        "thing(p=" + "-" * 900 + "1)",
        "thing(p=0.5); other",
        "thing\x00",
        "",
    ],
)
def test_code_is_refused(text):
    with pytest.raises(SpecError):
        spec.build_one("thing", text, THINGS)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("thng", "did you mean 'thing'"),
        ("thing(P=0.5)", "valid: at, mode, p, sigma"),
        ("thing(p=0)", "greater than 0"),
        ("thing(p=2)", "less than or equal to 1"),
        ("thing(p='x')", "valid number"),
        ("thing(p=True)", "valid number"),
        ("thing(mode='c')", "'a' or 'b'"),
        ("thing(sigma='mach')", "match"),
        ("thing(0.5, 1)", "key=value"),
        ("thing(0.5, p=1)", "key=value"),
        ("thing(p=1e999)", "too large"),
        ("thing + other", "not a sum"),
    ],
)
def test_errors_say_what_would_be_valid(text, hint):
    with pytest.raises(SpecError, match=r".") as caught:
        spec.build_one("thing", text, THINGS)
    assert hint in str(caught.value)


def test_values_get_their_declared_types():
    built = spec.build_one("thing", "thing(p=1, sigma='match', at=[3, 4])", THINGS)
    assert built == Thing(p=1.0, sigma="match", at=(3, 4))
    assert isinstance(built.p, float)


def test_an_object_made_in_code_is_checked_too():
    with pytest.raises(SpecError, match="greater than 0"):
        Thing(p=-1)


def test_factories_are_described_by_their_settings_and_a_sentence():
    def needs(*, path: str, times: int = 3) -> str:
        """Needs a path.

        And says more.
        """
        return path * times

    assert spec.describe(needs) == ("path=..., times=3", "Needs a path.")
    assert spec.describe(Thing) == ("p=0.5, mode='a', sigma=0.1, at=()", "A thing.")
    assert spec.describe(lambda: None) == ("", "")


def test_required_settings_are_named():
    def needs(*, path: str) -> str:
        return path

    with pytest.raises(SpecError, match=r"needs path=\.\.\."):
        spec.build_one("thing", "needs", {"needs": needs})
