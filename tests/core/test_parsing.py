"""The reader of specs: how deep, how long and how large what it reads may be, and how it is written again."""

import pytest

from fl_app.core.parsing import MAX_DEPTH, MAX_LENGTH, Part, SpecError, parse, write


def nested(number, pattern):
    """So many parts inside each other."""
    text = "a"
    for _ in range(number - 1):
        text = pattern.format(text)
    return text


@pytest.mark.parametrize("pattern", ["a({})", "a(k={})"])
def test_parts_may_lie_inside_each_other_up_to_a_depth(pattern):
    (part,) = parse(nested(MAX_DEPTH + 1, pattern))
    for _ in range(MAX_DEPTH):
        (part,) = part.values or part.settings.values()
    assert part == Part("a", {})
    with pytest.raises(SpecError, match="cannot read the spec"):
        parse(nested(MAX_DEPTH + 2, pattern))


def test_blanks_around_a_spec_are_nothing():
    assert parse("  a( k = 1 ) + b \n\t ") == parse("a(k=1)+b")


@pytest.mark.parametrize("pattern", ["a({})", "a(k={})"])
def test_lists_too(pattern):
    value = "[" * (MAX_DEPTH - 1) + "7" + "]" * (MAX_DEPTH - 1)
    assert write(parse(pattern.format(value))[0]) == pattern.format(value)
    with pytest.raises(SpecError, match="cannot read the spec"):
        parse(pattern.format(f"[{value}]"))


def test_a_spec_has_a_length():
    text = "a" * MAX_LENGTH
    assert parse(text) == [Part(text, {})]
    with pytest.raises(SpecError, match="at most 2000 characters, this one has 2001"):
        parse(f"{text}a")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a(1, -2.5, k=1_000)", Part("a", {"k": 1000}, (1, -2.5))),
        ("a(k=(1, 2,), m=[])", Part("a", {"k": [1, 2], "m": []})),
        ("a(True, None, k=False,)", Part("a", {"k": False}, (True, None))),
        (r"a('\x41\u00e9\U0001F600\n\'')", Part("a", {}, ("Aé😀\n'",))),
        ("x.y:Z(b(c=.5))", Part("x.y:Z", {}, (Part("b", {"c": 0.5}),))),
        ("a()", Part("a", {})),
    ],
)
def test_what_is_read(text, part):
    assert parse(text) == [part]
    assert parse(write(part)) == [part]


UNREADABLE = [
    *("", "a(", "a b", "a(1 2)", "a([1 2])", "a([1", "True", "a + ", "a)", "+a", "1"),
    *("a(b()=1)=2", "a(b(1)=2)", "a(b(c=1)=2)", "a(x:y=2)", "a('k'=2)", "a(1=2)"),
]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a(k=1, 2)", "a: a value without a key cannot follow key=value"),
        ("a(k=1, k=2)", "a: k is given twice"),
        ("a(k=1e999)", "the value of k: 1e999 is too large"),
        (r"a('\U00110000')", "is no character"),
        (r"a('\q')", r"\\q has no meaning"),
        *((text, "cannot read the spec") for text in UNREADABLE),
    ],
)
def test_what_is_refused(text, said):
    with pytest.raises(SpecError, match=said):
        parse(text)
