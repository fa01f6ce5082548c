"""The text of an expression, normalized however it was written: for keys and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from gradcheck_accum.lint.syntax import nodes as s
from gradcheck_accum.lint.syntax.node import Node
from gradcheck_accum.lint.syntax.operators import Junction, Operator, UnaryOperator

# How tightly expressions bind, loosest first.
_NAMED, _YIELD, _TEST, _OR, _AND, _NOT, _COMPARE = range(1, 8)
_BITOR, _BITXOR, _BITAND, _SHIFT, _SUM, _PRODUCT, _SIGN, _POWER, _AWAIT, _ATOM = range(8, 18)

_BINDING: Mapping[Operator, int] = {
    Operator.BITOR: _BITOR,
    Operator.BITXOR: _BITXOR,
    Operator.BITAND: _BITAND,
    Operator.LSHIFT: _SHIFT,
    Operator.RSHIFT: _SHIFT,
    Operator.ADD: _SUM,
    Operator.SUB: _SUM,
    Operator.POW: _POWER,
}


def text_of(node: Node) -> str:
    """The text of an expression; cached, because loops need the same ones repeatedly."""
    try:
        return node._text
    except AttributeError:
        text = _WRITERS[type(node)](node)
        object.__setattr__(node, "_text", text)
        return text


def last_name(node: Node) -> str:
    """The last part of the name that an expression is; empty where it is none."""
    return node.attr if isinstance(node, s.Attribute) else node.id if isinstance(node, s.Name) else ""


def call_name(node: s.Call) -> str:
    """The last part of the name that is called."""
    return last_name(node.func)


def _within(node: Node, least: int) -> str:
    """What an expression looks like where only what binds at least so tightly needs no parentheses."""
    binding = _BINDS.get(type(node), _ATOM)
    if callable(binding):
        binding = binding(node)
    return text_of(node) if binding >= least else f"({text_of(node)})"


def _listed(nodes: Iterable[Node]) -> str:
    return ", ".join(_within(node, _TEST) for node in nodes)


def _binary_binding(node: s.BinOp) -> int:
    return _BINDING.get(node.op, _PRODUCT)


def _binary(node: s.BinOp) -> str:
    own = _binary_binding(node)
    to_the_right = node.op is Operator.POW
    left, right = _within(node.left, own + to_the_right), _within(node.right, own + (not to_the_right))
    if to_the_right and isinstance(node.right, s.UnaryOp):
        right = text_of(node.right)  # a sign binds what is to its right, even here
    return f"{left} {node.op.value} {right}"


def _unary(node: s.UnaryOp) -> str:
    if node.op is UnaryOperator.NOT:
        return f"not {_within(node.operand, _NOT)}"
    return f"{node.op.value}{_within(node.operand, _SIGN)}"


def _boolean(node: s.BoolOp) -> str:
    own = _AND if node.op is Junction.AND else _OR
    return f" {node.op.value} ".join(_within(value, own + 1) for value in node.values)


def _compare(node: s.Compare) -> str:
    parts = [_within(node.left, _COMPARE + 1)]
    for op, right in zip(node.ops, node.comparators, strict=True):
        parts += (op.value, _within(right, _COMPARE + 1))
    return " ".join(parts)


def _conditional(node: s.IfExp) -> str:
    body, test = _within(node.body, _TEST + 1), _within(node.test, _TEST + 1)
    return f"{body} if {test} else {_within(node.orelse, _TEST)}"


def _lambda(node: s.Lambda) -> str:
    given = _arguments(node.args)
    return f"lambda{' ' if given else ''}{given}: {_within(node.body, _TEST)}"


def _arguments(args: s.Arguments) -> str:
    positional = [*args.posonlyargs, *args.args]
    missing = len(positional) - len(args.defaults)
    written = [_parameter(a, d) for a, d in zip(positional, (*[None] * missing, *args.defaults), strict=True)]
    if args.posonlyargs:
        written.insert(len(args.posonlyargs), "/")
    if args.vararg is not None or args.kwonlyargs:
        written.append(f"*{args.vararg.arg if args.vararg is not None else ''}")
    written += map(_parameter, args.kwonlyargs, args.kw_defaults)
    if args.kwarg is not None:
        written.append(f"**{args.kwarg.arg}")
    return ", ".join(written)


def _parameter(arg: s.Arg, default: s.Expression | None) -> str:
    return arg.arg if default is None else f"{arg.arg}={_within(default, _TEST)}"


def _call(node: s.Call) -> str:
    given = (f"{k.arg}={_within(k.value, _TEST)}" if k.arg else f"**{_within(k.value, _BITOR)}" for k in node.keywords)
    return f"{_within(node.func, _ATOM)}({', '.join(chain((_within(a, _TEST) for a in node.args), given))})"


def _attribute(node: s.Attribute) -> str:
    is_number = isinstance(node.value, s.Constant) and isinstance(node.value.value, (int, float, complex))
    return f"({text_of(node.value)}).{node.attr}" if is_number else f"{_within(node.value, _ATOM)}.{node.attr}"


def _subscript(node: s.Subscript) -> str:
    index = node.slice
    bare = isinstance(index, s.Tuple) and len(index.elts) > 0
    return f"{_within(node.value, _ATOM)}[{_elements(index) if bare else _within(index, _TEST)}]"


def _elements(node: s.Tuple | Any) -> str:
    return _listed(node.elts) + ("," if len(node.elts) == 1 else "")


def _slice(node: s.Slice) -> str:
    lower, upper, step = ("" if part is None else _within(part, _TEST) for part in (node.lower, node.upper, node.step))
    return f"{lower}:{upper}{f':{step}' if step else ''}"


def _dict(node: s.Dict) -> str:
    pairs = (
        f"**{_within(value, _BITOR)}" if key is None else f"{_within(key, _TEST)}: {_within(value, _TEST)}"
        for key, value in zip(node.keys, node.values, strict=True)
    )
    return f"{{{', '.join(pairs)}}}"


def _comprehended(element: str, generators: Iterable[s.Comprehension]) -> str:
    return element + "".join(chain.from_iterable(map(_generator, generators)))


def _generator(generator: s.Comprehension) -> Iterator[str]:
    target = generator.target
    bare = isinstance(target, s.Tuple) and len(target.elts) > 0
    yield f" for {_elements(target) if bare else _within(target, _TEST)} in {_within(generator.iter, _TEST + 1)}"
    for test in generator.ifs:
        yield f" if {_within(test, _TEST + 1)}"


def _constant(node: s.Constant) -> str:
    if node.value is ...:
        return "..."
    # What is larger than any float is written so that it is read back.
    return repr(node.value).replace("inf", "1e309") if isinstance(node.value, (float, complex)) else repr(node.value)


def _yielded(node: s.Yield) -> str:
    return "yield" if node.value is None else f"yield {_within(node.value, _TEST)}"


def _set(node: s.Set) -> str:
    return f"{{{_listed(node.elts) or '*()'}}}"


_WRITERS: dict[type[Node], Callable[[Any], str]] = {
    s.Constant: _constant,
    s.Name: lambda node: node.id,
    s.Attribute: _attribute,
    s.Subscript: _subscript,
    s.Slice: _slice,
    s.Starred: lambda node: f"*{_within(node.value, _BITOR)}",
    s.Call: _call,
    s.BinOp: _binary,
    s.UnaryOp: _unary,
    s.BoolOp: _boolean,
    s.Compare: _compare,
    s.IfExp: _conditional,
    s.NamedExpr: lambda node: f"{text_of(node.target)} := {_within(node.value, _TEST)}",
    s.Lambda: _lambda,
    s.List: lambda node: f"[{_listed(node.elts)}]",
    s.Tuple: lambda node: f"({_elements(node)})",
    s.Set: _set,
    s.Dict: _dict,
    s.ListComp: lambda node: f"[{_comprehended(_within(node.elt, _TEST), node.generators)}]",
    s.SetComp: lambda node: f"{{{_comprehended(_within(node.elt, _TEST), node.generators)}}}",
    s.GeneratorExp: lambda node: f"({_comprehended(_within(node.elt, _TEST), node.generators)})",
    s.DictComp: lambda node: (
        f"{{{_comprehended(f'{_within(node.key, _TEST)}: {_within(node.value, _TEST)}', node.generators)}}}"
    ),
    s.Await: lambda node: f"await {_within(node.value, _ATOM)}",
    s.Yield: _yielded,
    s.YieldFrom: lambda node: f"yield from {_within(node.value, _TEST)}",
    s.JoinedStr: lambda node: node.written,
}
_BINDS: dict[type[Node], int | Callable[[Any], int]] = {
    s.NamedExpr: _NAMED,
    s.Yield: _YIELD,
    s.YieldFrom: _YIELD,
    s.IfExp: _TEST,
    s.Lambda: _TEST,
    s.BoolOp: lambda node: _AND if node.op is Junction.AND else _OR,
    s.UnaryOp: lambda node: _NOT if node.op is UnaryOperator.NOT else _SIGN,
    s.Compare: _COMPARE,
    s.BinOp: _binary_binding,
    s.Await: _AWAIT,
}
"""How tightly each kind binds; what is not here holds together by itself."""
