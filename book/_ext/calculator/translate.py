"""Python functions as JavaScript, read from their sources when the book is built.

``Translation`` takes functions of the package and whatever of it they call, and writes them for
``runtime.js``: numbers, arrays that broadcast, lists, dictionaries with text as keys, exceptions.
What it cannot translate it refuses by file and line, so that a page never computes something else
than the package. There is no second copy of an equation to keep in step.
"""

import ast
import builtins
import dataclasses
import inspect
import json
import math
import textwrap
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NoReturn

import numpy as np

from kvpaper.errors import InputError

# What runtime.js has, with the names that may be passed by keyword.
NUMPY = {
    **dict.fromkeys(("asarray", "array", "broadcast_arrays", "unique", "geomspace", "where"), ()),
    **dict.fromkeys(("add", "subtract", "multiply", "divide", "power", "exp", "clip"), ()),
    **dict.fromkeys(("ceil", "floor", "rint", "minimum", "maximum"), ()),
    **dict.fromkeys(("greater", "greater_equal", "less", "less_equal"), ()),
    **dict.fromkeys(("all", "sum"), ("axis",)),
    "searchsorted": ("side",),
}
BUILTINS = {
    **dict.fromkeys(("float", "int", "bool", "list", "dict", "len", "repr", "getattr"), ()),
    **dict.fromkeys(("all", "map", "enumerate", "range"), ()),
    **dict.fromkeys(("min", "max"), ("key", "default")),
    "zip": ("strict",),
}
_ROOMS = {np: ("np", NUMPY), builtins: ("builtins", BUILTINS)}
# Exact fractions are floats here, of as many digits as the float that they end in.
_NUMBERS = {object: "float", Fraction: "float"}
_EXCEPTIONS = {ValueError: "$.ValueError", InputError: "$.InputError"}
_OPERATORS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Pow: "pow",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.USub: "neg",
    ast.Invert: "invert",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.DictComp)


def literal(value: Any) -> str:
    """A constant of Python in JavaScript.

    >>> literal((None, True, "a", 1e9, math.inf, {"b": np.float64(0.5)}))
    '[null, true, "a", 1000000000.0, Infinity, {"b": 0.5}]'

    Raises
    ------
    TypeError
        If it is none, or holds something that is none.
    """
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key that is no text")
        pairs = (f"{json.dumps(key)}: {literal(part)}" for key, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, np.generic | np.ndarray):
        return literal(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return json.dumps(value)
    raise TypeError(f"a {type(value).__name__}")


def _mangled(name: str) -> str:
    """A local name: none that JavaScript, the runtime or the page uses ends like this."""
    return f"{name}$"


class Translation:
    """Functions of the package in JavaScript, with all that they call.

    Parameters
    ----------
    provided : dict
        Functions that read files, by the JavaScript that stands in for them.
    classes : tuple of type
        Value objects whose methods and properties may be called: in JavaScript these are plain
        objects of their fields.
    """

    def __init__(self, provided: dict[Callable, str], classes: tuple[type, ...] = ()) -> None:
        self._provided = {inspect.unwrap(function): text for function, text in provided.items()}
        self._classes = classes
        self._texts: dict[str, str] = {}
        self._members: dict[str, dict[str, str]] = {"methods": {}, "properties": {}}
        self.functions: dict[str, Callable] = {}

    def add(self, function: Callable) -> str:
        """Translate a function unless that was done; its name in JavaScript.

        Raises
        ------
        InputError
            If a line of it is outside the subset; it names file and line.
        """
        function = inspect.unwrap(function)
        if function in self._provided:
            return self._provided[function]
        name = f"{function.__module__}.{function.__qualname__}".removeprefix("kvpaper.")
        name = name.replace(".", "$")
        if name not in self.functions:
            self.functions[name] = function
            self._texts[name] = _Function(self, function).text(name)
        return name

    def add_member(self, name: str) -> FunctionType | property | None:
        """Translate the method or property of this name, where one value object has it."""
        found = [vars(cls)[name] for cls in self._classes if name in vars(cls)]
        members = [each for each in found if isinstance(each, FunctionType | property)]
        if len(members) != 1:
            return None
        (member,) = members
        is_property = isinstance(member, property)
        table = self._members["properties" if is_property else "methods"]
        table[name] = self.add(member.fget if is_property else member)
        return member

    def text(self) -> str:
        """All of it as one script, after ``runtime.js``."""
        members = (
            f"$.{kind}.{name} = {known[name]};\n"
            for kind, known in self._members.items()
            for name in sorted(known)
        )
        return "\n".join([*(self._texts[name] for name in sorted(self._texts)), *members])


def _is_ours(value: object) -> bool:
    function = inspect.unwrap(value)
    return isinstance(function, FunctionType) and function.__module__.startswith("kvpaper")


class _Function:
    """One function while it is translated."""

    def __init__(self, translation: Translation, function: FunctionType) -> None:
        self._translation, self._function = translation, function
        self._file = inspect.getsourcefile(function)
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        ast.increment_lineno(tree, first - 1)
        self._tree = tree.body[0]
        # Names of each enclosing function, innermost last.
        self._scopes: list[set[str]] = []

    def text(self, name: str) -> str:
        if not isinstance(self._tree, ast.FunctionDef):
            self._refuse(self._tree, "a lambda", "a function with a name")
        parameters = inspect.signature(self._function).parameters
        arguments = self._tree.args
        defaults = {}
        for parameter in parameters.values():
            if parameter.default is not parameter.empty:
                try:
                    defaults[parameter.name] = literal(parameter.default)
                except TypeError as error:
                    self._refuse(arguments, f"a default that is {error}", "a constant")
        first_line = (inspect.getdoc(self._function) or "").partition("\n")[0]
        head = f"// {first_line}\n" if first_line else ""
        return f"{head}function {name}{self._whole(self._tree, defaults)}\n"

    def _refuse(self, node: ast.AST, found: str, expected: str) -> NoReturn:
        file, root = Path(self._file), Path(__file__).resolve().parents[3]
        shown = file.relative_to(root) if file.is_relative_to(root) else file
        raise InputError(f"{shown}:{getattr(node, 'lineno', self._tree.lineno)}", found, expected)

    # Functions and their names

    def _whole(self, node: ast.FunctionDef, defaults: dict[str, str]) -> str:
        """Parameters and body of a function; defaults are given as JavaScript."""
        if node.args.vararg:
            self._refuse(node, f"*{node.args.vararg.arg}", "parameters with names")
        plain = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        names = [argument.arg for argument in plain]
        rest = [node.args.kwarg.arg] if node.args.kwarg else []
        local = set(_stored(node.body))
        self._scopes.append({*names, *rest, *local})
        shown = [
            f"{_mangled(name)} = {defaults[name]}" if name in defaults else _mangled(name)
            for name in names
        ] + [f"{_mangled(name)} = {{}}" for name in rest]
        fresh = sorted(local - {*names, *rest})
        declared = f"let {', '.join(map(_mangled, fresh))};\n" if fresh else ""
        body = declared + self._block(node.body)
        self._scopes.pop()
        if not isinstance(node.body[-1], ast.Return | ast.Raise):
            body += "return null;\n"
        return f"({', '.join(shown)}) {{\n{textwrap.indent(body, '  ')}}}"

    def _block(self, statements: Iterable[ast.stmt]) -> str:
        return "".join(map(self._statement, statements))

    # Statements

    def _statement(self, node: ast.stmt) -> str:
        translate = getattr(self, f"_do_{type(node).__name__}", None)
        if translate is None:
            self._refuse(node, f"a statement of kind {type(node).__name__}", "one that is known")
        return translate(node)

    def _do_Expr(self, node: ast.Expr) -> str:
        if isinstance(node.value, ast.Constant):  # a docstring
            return ""
        return f"{self._value(node.value)};\n"

    def _do_Continue(self, node: ast.Continue) -> str:
        return "continue;\n"

    def _do_Return(self, node: ast.Return) -> str:
        return f"return {self._value(node.value) if node.value else 'null'};\n"

    def _do_Assign(self, node: ast.Assign) -> str:
        if len(node.targets) > 1:
            self._refuse(node, "a chain of assignments", "one at a time")
        return self._assigned(node.targets[0], self._value(node.value))

    def _do_AugAssign(self, node: ast.AugAssign) -> str:
        if not isinstance(node.target, ast.Name):
            self._refuse(node, "a change in place", "one of a name")
        changed = ast.BinOp(node.target, node.op, node.value)
        return self._assigned(node.target, self._value(ast.copy_location(changed, node)))

    def _assigned(self, target: ast.expr, value: str) -> str:
        if isinstance(target, ast.Tuple):
            value = f"$.unpack({value}, {len(target.elts)})"
        return f"{self._target(target)} = {value};\n"

    def _target(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return _mangled(node.id)
        if isinstance(node, ast.Tuple):
            return f"[{', '.join(map(self._target, node.elts))}]"
        self._refuse(node, f"a target of kind {type(node).__name__}", "names")

    def _do_If(self, node: ast.If) -> str:
        otherwise = f" else {{\n{self._inner(node.orelse)}}}" if node.orelse else ""
        return f"if ({self._truth(node.test)}) {{\n{self._inner(node.body)}}}{otherwise}\n"

    def _inner(self, statements: Iterable[ast.stmt]) -> str:
        return textwrap.indent(self._block(statements), "  ")

    def _do_For(self, node: ast.For) -> str:
        if node.orelse:
            self._refuse(node, "an else of a loop", "a loop without one")
        each = self._assigned(node.target, "$each")
        return (
            f"for (const $each of $.iter({self._value(node.iter)})) {{\n  {each}"
            f"{self._inner(node.body)}}}\n"
        )

    def _do_While(self, node: ast.While) -> str:
        if node.orelse:
            self._refuse(node, "an else of a loop", "a loop without one")
        return f"while ({self._truth(node.test)}) {{\n{self._inner(node.body)}}}\n"

    def _do_With(self, node: ast.With) -> str:
        for entry in node.items:
            called = entry.context_expr.func if isinstance(entry.context_expr, ast.Call) else None
            if called is None or self._known(called) is not np.errstate:
                self._refuse(node, "a with statement", "np.errstate, or none")
        return self._block(node.body)

    def _do_Raise(self, node: ast.Raise) -> str:
        if node.exc is None:
            self._refuse(node, "a raise of nothing new", "an exception")
        return f"throw {self._value(node.exc)};\n"

    def _do_Try(self, node: ast.Try) -> str:
        if node.orelse or node.finalbody:
            self._refuse(node, "an else or a finally", "try and except")
        caught = ""
        for handler in node.handlers:
            kind = self._exception(handler.type)
            if kind is None:
                self._refuse(handler, "an except of another kind", "ValueError or InputError")
            bound = f"  {_mangled(handler.name)} = $error;\n" if handler.name else ""
            caught += (
                f"if ($error instanceof {kind}) {{\n{bound}{self._inner(handler.body)}}} else "
            )
        caught = textwrap.indent(f"{caught}{{\n  throw $error;\n}}\n", "  ")
        return f"try {{\n{self._inner(node.body)}}} catch ($error) {{\n{caught}}}\n"

    def _do_FunctionDef(self, node: ast.FunctionDef) -> str:
        if node.decorator_list or node.args.defaults or any(node.args.kw_defaults):
            self._refuse(node, "a nested function with a decorator or a default", "a plain one")
        return f"{_mangled(node.name)} = function {self._whole(node, {})};\n"

    # Names

    def _is_local(self, name: str) -> bool:
        return any(name in scope for scope in self._scopes)

    def _known(self, node: ast.expr) -> Any:
        """The object that a name, or an attribute of a module, stands for; None where unknown."""
        if isinstance(node, ast.Name) and not self._is_local(node.id):
            module = self._function.__globals__
            return module.get(node.id, getattr(builtins, node.id, None))
        if isinstance(node, ast.Attribute):
            parent = self._known(node.value)
            if isinstance(parent, ModuleType):
                return getattr(parent, node.attr, None)
        return None

    def _exception(self, node: ast.expr | None) -> str | None:
        known = None if node is None else self._known(node)
        return _EXCEPTIONS.get(known) if isinstance(known, type) else None

    def _reference(self, node: ast.expr) -> str | None:
        """JavaScript for something global; None where the node is nothing global."""
        known = self._known(node)
        if known is None:
            return None
        if exception := self._exception(node):
            return exception
        if room := self._room(known):
            return f"$.{room[0]}.{room[1]}"
        if _is_ours(known):
            return self._translation.add(known)
        try:
            return literal(known)
        except TypeError as error:
            name = ast.unparse(node)
            self._refuse(node, f"{name}, {error}", "a function, a constant or part of runtime.js")

    @staticmethod
    def _room(known: Any) -> tuple[str, str, tuple[str, ...]] | None:
        """Where the runtime has a function, under which name, and its keywords."""
        if isinstance(known, type) and known in _NUMBERS:
            return "builtins", _NUMBERS[known], ()
        for module, (room, table) in _ROOMS.items():
            for name, keywords in table.items():
                if known is getattr(module, name):
                    return room, name, keywords
        return None

    # Expressions

    def _value(self, node: ast.expr) -> str:
        if (reference := self._reference(node)) is not None:
            return reference
        translate = getattr(self, f"_as_{type(node).__name__}", None)
        if translate is None:
            self._refuse(node, f"an expression of kind {type(node).__name__}", "one that is known")
        return translate(node)

    def _truth(self, node: ast.expr) -> str:
        return f"$.truth({self._value(node)})"

    def _as_Constant(self, node: ast.Constant) -> str:
        if node.value is Ellipsis:
            return "$.ELLIPSIS"
        try:
            return literal(node.value)
        except TypeError as error:
            self._refuse(node, str(error), "a number or a text")

    def _as_Name(self, node: ast.Name) -> str:
        if not self._is_local(node.id):
            self._refuse(node, f"the name {node.id}", "one that is defined")
        return _mangled(node.id)

    def _as_Attribute(self, node: ast.Attribute) -> str:
        if isinstance(self._known(node.value), ModuleType):
            self._refuse(node, ast.unparse(node), "something that the module has")
        self._translation.add_member(node.attr)
        return f'$.attr({self._value(node.value)}, "{node.attr}")'

    def _as_BinOp(self, node: ast.BinOp) -> str:
        return f"$.{self._operator(node)}({self._value(node.left)}, {self._value(node.right)})"

    def _as_UnaryOp(self, node: ast.UnaryOp) -> str:
        if isinstance(node.op, ast.Not):
            return f"!{self._truth(node.operand)}"
        return f"$.{self._operator(node)}({self._value(node.operand)})"

    def _operator(self, node: ast.BinOp | ast.UnaryOp) -> str:
        if type(node.op) not in _OPERATORS:
            self._refuse(node, f"an operator {type(node.op).__name__}", "arithmetic, & or |")
        return _OPERATORS[type(node.op)]

    def _as_BoolOp(self, node: ast.BoolOp) -> str:
        """The operand that decides, as in Python; the last one is not tested."""
        *tested, last = node.values
        text = self._value(last)
        for operand in reversed(tested):
            branches = f"{text} : $x" if isinstance(node.op, ast.And) else f"$x : {text}"
            text = f"(($x) => ($.truth($x) ? {branches}))({self._value(operand)})"
        return text

    def _as_IfExp(self, node: ast.IfExp) -> str:
        chosen, other = self._value(node.body), self._value(node.orelse)
        return f"({self._truth(node.test)} ? {chosen} : {other})"

    def _as_Compare(self, node: ast.Compare) -> str:
        operands = [node.left, *node.comparators]
        links = [
            self._compared(operator, left, right)
            for operator, left, right in zip(node.ops, operands, operands[1:], strict=False)
        ]
        # A middle operand is evaluated twice, which nobody can tell of a pure function.
        *before, last = links
        return f"({' && '.join([*(f'$.truth({link})' for link in before), last])})"

    def _compared(self, operator: ast.cmpop, left: ast.expr, right: ast.expr) -> str:
        first, second = self._value(left), self._value(right)
        if isinstance(operator, ast.Is | ast.IsNot):
            return f"{first} {'===' if isinstance(operator, ast.Is) else '!=='} {second}"
        if isinstance(operator, ast.In | ast.NotIn):
            denied = "!" if isinstance(operator, ast.NotIn) else ""
            return f"{denied}$.contains({second}, {first})"
        return f"$.{_OPERATORS[type(operator)]}({first}, {second})"

    def _as_Subscript(self, node: ast.Subscript) -> str:
        return f"$.item({self._value(node.value)}, {self._value(node.slice)})"

    def _as_List(self, node: ast.List | ast.Tuple) -> str:
        return f"[{', '.join(map(self._listed, node.elts))}]"

    _as_Tuple = _as_List

    def _listed(self, node: ast.expr) -> str:
        if isinstance(node, ast.Starred):
            return f"...$.iter({self._value(node.value)})"
        return self._value(node)

    def _as_Dict(self, node: ast.Dict) -> str:
        parts = []
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                parts.append(f"...{self._value(value)}")
            else:
                parts.append(f"[{self._value(key)}]: {self._value(value)}")
        return f"({{{', '.join(parts)}}})"

    def _as_JoinedStr(self, node: ast.JoinedStr) -> str:
        parts = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(literal(part.value))
                continue
            spec = part.format_spec.values if part.format_spec else []
            if not all(isinstance(piece, ast.Constant) for piece in spec):
                self._refuse(node, "a format that is computed", "a constant one")
            written = "".join(piece.value for piece in spec)
            conversion = "" if part.conversion < 0 else chr(part.conversion)
            parts.append(
                f"$.format({self._value(part.value)}, {literal(written)}, {literal(conversion)})"
            )
        return f"[{', '.join(parts)}].join('')"

    def _as_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> str:
        return self._comprehension(node.generators, [node.elt], "{}")

    _as_GeneratorExp = _as_ListComp

    def _as_DictComp(self, node: ast.DictComp) -> str:
        pairs = self._comprehension(node.generators, [node.key, node.value], "[{}]")
        return f"Object.fromEntries({pairs})"

    def _comprehension(
        self, generators: list[ast.comprehension], made: list[ast.expr], shape: str
    ) -> str:
        # The first list is evaluated outside, where the names of the comprehension do not hold.
        first = self._value(generators[0].iter)
        names = [name for part in generators for name in _stored([part.target])]
        self._scopes.append(set(names))
        heads, tails = "", ""
        for position, part in enumerate(generators):
            source = f"$.iter({self._value(part.iter)})" if position else "$first"
            each = self._assigned(part.target, "$each").strip()
            heads += f"for (const $each of {source}) {{ {each} "
            for condition in part.ifs:
                heads += f"if (!{self._truth(condition)}) continue; "
            tails += " }"
        value = shape.format(", ".join(map(self._value, made)))
        self._scopes.pop()
        declared = ", ".join(map(_mangled, dict.fromkeys(names)))
        return (
            f"(($first) => {{ let {declared}; const $made = []; {heads}$made.push({value});{tails} "
            f"return $made; }})($.iter({first}))"
        )

    # Calls

    def _as_Call(self, node: ast.Call) -> str:
        called = self._known(node.func)
        if called is dataclasses.replace:
            return self._replaced(node)
        if exception := self._exception(node.func):
            return f"new {exception}({self._positional(node)})"
        if room := self._room(called):
            return self._runtime_call(node, *room)
        if _is_ours(called):
            given = self._bound(node, inspect.signature(called))
            return f"{self._translation.add(called)}({given})"
        if called is not None:
            self._refuse(node, f"a call of {ast.unparse(node.func)}", "a function of the package")
        if isinstance(node.func, ast.Attribute):
            name, receiver = node.func.attr, self._value(node.func.value)
            method = self._translation.add_member(name)
            if isinstance(method, FunctionType):
                # Bound to any object, so that its first parameter is not asked for.
                given = self._bound(node, inspect.signature(method.__get__(self)))
            else:
                given = self._positional(node)
            return f'$.method({receiver}, "{name}"{", " if given else ""}{given})'
        return f"{self._value(node.func)}({self._positional(node)})"

    def _positional(self, node: ast.Call) -> str:
        if node.keywords:
            self._refuse(node, "an argument by keyword", "one by position, in a call of a value")
        return ", ".join(map(self._listed, node.args))

    def _replaced(self, node: ast.Call) -> str:
        """A copy of a value object with some fields changed."""
        fields = [f"...{self._value(node.args[0])}"]
        for keyword in node.keywords:
            name = f"{keyword.arg}: " if keyword.arg else "..."
            fields.append(name + self._value(keyword.value))
        return f"({{{', '.join(fields)}}})"

    def _runtime_call(self, node: ast.Call, room: str, name: str, keywords: tuple[str, ...]) -> str:
        given = [self._listed(argument) for argument in node.args]
        unknown = [keyword.arg for keyword in node.keywords if keyword.arg not in keywords]
        if unknown:
            self._refuse(node, f"{name} with {unknown[0]}", f"{name} as runtime.js has it")
        if node.keywords:
            options = (f"{part.arg}: {self._value(part.value)}" for part in node.keywords)
            given.append(f"{{{', '.join(options)}}}")
        return f"$.{room}.{name}({', '.join(given)})"

    def _bound(self, node: ast.Call, signature: inspect.Signature) -> str:
        """Arguments in the order of the parameters; what was left out is undefined."""
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            return self._positional(node)
        named = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        spread = [keyword.value for keyword in node.keywords if not keyword.arg]
        try:
            given = signature.bind(*node.args, **named).arguments
        except TypeError as error:
            called = f"{ast.unparse(node.func)}{signature}"
            self._refuse(node, f"a call that does not fit ({error})", f"one of {called}")
        kinds = {parameter.kind: name for name, parameter in signature.parameters.items()}
        rest = kinds.get(inspect.Parameter.VAR_KEYWORD)
        if spread and not rest:
            self._refuse(node, f"the argument **{ast.unparse(spread[0])}", "arguments with names")
        extra = [f"...{self._value(value)}" for value in spread]
        extra += [f"{name}: {self._value(value)}" for name, value in given.pop(rest, {}).items()]
        names = [name for name in signature.parameters if name != rest]
        texts = [self._value(given[name]) if name in given else "undefined" for name in names]
        if extra:
            return ", ".join([*texts, f"$.named({{{', '.join(extra)}}}, {literal(names)})"])
        used = max((place + 1 for place, name in enumerate(names) if name in given), default=0)
        return ", ".join(texts[:used])


def _stored(nodes: Iterable[ast.AST]) -> list[str]:
    """Names that statements assign, those of nested functions too; not those of inner scopes."""
    found: list[str] = []
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            found.append(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append(node.id)
        elif not isinstance(node, _COMPREHENSIONS):
            if isinstance(node, ast.ExceptHandler) and node.name:
                found.append(node.name)
            found += _stored(ast.iter_child_nodes(node))
    return found
