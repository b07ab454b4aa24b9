"""Values that are recorded, and the types by which they are checked.

A value is what JSON can write. A type makes more of it: dataclasses and TypedDicts are read back as
what they were, and a recorded value that does not fit is found. Without a type, values are taken as
they are.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import re
import sys
import types
import typing
from typing import Any, Union

from . import canonical

MAX_VALUE = 1 << 20
MAX_DEPTH = 50
MAX_MARKS = 64
_base64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\Z")
_forbidden = re.compile("[\x00\ud800-\udfff]")


class Unfit(ValueError):
    """A value does not fit the type that the code asks for."""


class Unrecordable(ValueError):
    """A value can't be written as JSON, or is beyond a bound. The code is that of a step with such a result."""

    def __init__(self, message: str, code: str = "invalid_result"):
        super().__init__(message)
        self.code = code


def name_of(tp: Any) -> str:
    return getattr(tp, "__name__", None) or str(tp)


def _fields(tp: Any) -> dict[str, Any] | None:
    """Returns the fields of a dataclass or a TypedDict, and None of another type."""
    if dataclasses.is_dataclass(tp) and isinstance(tp, type):
        hints = _hints(tp)
        return {f.name: hints.get(f.name, Any) for f in dataclasses.fields(tp) if f.init}
    if typing.is_typeddict(tp):
        return _hints(tp)
    return None


def _hints(tp: Any) -> dict[str, Any]:
    out = {}
    for name, hint in typing.get_type_hints(tp).items():
        if str(typing.get_origin(hint)) in ("typing.Required", "typing.NotRequired"):
            hint = typing.get_args(hint)[0]
        out[name] = hint
    return out


def _union(tp: Any) -> tuple[Any, ...] | None:
    origin = typing.get_origin(tp)
    if origin is Union or origin is getattr(types, "UnionType", None):
        return typing.get_args(tp)
    return None


def _element(tp: Any) -> Any:
    args = typing.get_args(tp)
    return args[-1] if args else Any


def known(tp: Any) -> bool:
    """Tells whether a type is one that values are checked by."""
    if tp in (Any, None, type(None), str, int, float, bool, bytes, list, dict, object):
        return True
    fields = _fields(tp)
    if fields is not None:
        return all(known(t) or t is tp for t in fields.values())
    union = _union(tp)
    if union is not None:
        return all(known(t) for t in union)
    origin = typing.get_origin(tp)
    if origin is typing.Literal:
        return True
    return origin in (list, dict) and all(known(t) for t in typing.get_args(tp))


# Writing


class _Writer:
    def __init__(self) -> None:
        self.marks: dict[str, None] = {}

    def write(self, v: Any, tp: Any, path: str, depth: int) -> Any:
        if v is None or v is True or v is False:
            return v
        if isinstance(v, str):
            return self.text(v, path)
        if isinstance(v, int):
            if not -(1 << 63) <= v < 1 << 64:
                raise Unrecordable("%s is an integer beyond 64 bits; write it as a text" % _at(path))
            return int(v)
        if isinstance(v, float):
            if not math.isfinite(v):
                raise Unrecordable("%s is %r, which is no JSON" % (_at(path), v))
            return int(v) if v.is_integer() and abs(v) < 1e21 else float(v)
        if isinstance(v, (bytes, bytearray)):
            if tp is not bytes:
                raise Unrecordable("%s is bytes; declare the field as bytes, in a type of the step" % _at(path))
            self.marks["b:" + path] = None
            return base64.b64encode(v).decode()
        if depth >= MAX_DEPTH:
            raise Unrecordable("%s is nested more than %d levels deep" % (_at(path), MAX_DEPTH))
        return self.nested(v, tp, path, depth)

    def text(self, v: str, path: str) -> str:
        v = str(v)
        if _forbidden.search(v):
            raise Unrecordable("%s has a NUL or half of a surrogate pair" % _at(path), "invalid")
        if v and len(v) % 4 == 0 and _base64.match(v):
            self.marks["t:" + path] = None
        return v

    def nested(self, v: Any, tp: Any, path: str, depth: int) -> Any:
        union = _union(tp)
        if union is not None:
            tp = next((t for t in union if _could_be(v, t)), Any)
        if dataclasses.is_dataclass(v) and not isinstance(v, type):
            hints = _hints(type(v))
            return {f.name: self.write(getattr(v, f.name), hints.get(f.name, Any), path + "/" + f.name, depth + 1)
                    for f in dataclasses.fields(v) if f.init}
        if isinstance(v, dict):
            fields = _fields(tp)
            of_map = typing.get_origin(tp) is dict
            out = {}
            for name, x in v.items():
                if not isinstance(name, str):
                    raise Unrecordable("%s has the key %r; keys are texts" % (_at(path), name))
                if _forbidden.search(name):
                    raise Unrecordable("%s has a key with a NUL or half of a surrogate pair" % _at(path), "invalid")
                inner = _element(tp) if of_map else (fields or {}).get(name, Any)
                out[str(name)] = self.write(x, inner, path + ("/*" if of_map else "/" + name), depth + 1)
            return out
        if isinstance(v, (list, tuple)):
            inner = _element(tp) if typing.get_origin(tp) is list else Any
            return [self.write(x, inner, path + "/*", depth + 1) for x in v]
        raise Unrecordable("%s is a %s, which is no JSON" % (_at(path), name_of(type(v))))


def _at(path: str) -> str:
    return "its part " + path if path else "it"


def _could_be(v: Any, tp: Any) -> bool:
    if dataclasses.is_dataclass(tp) and isinstance(tp, type):
        return isinstance(v, tp)
    if isinstance(v, dict):
        return typing.is_typeddict(tp) or tp is dict or typing.get_origin(tp) is dict
    return isinstance(v, (list, tuple)) and (tp is list or typing.get_origin(tp) is list)


def encode(value: Any, tp: Any = Any) -> tuple[Any, list[str]]:
    """Returns a value as JSON has it, and the marks of its bytes and texts."""
    w = _Writer()
    try:
        tree = w.write(value, tp, "", 0)
        size = len(canonical.dumps(tree))
    except RecursionError:
        raise Unrecordable("it is nested more than %d levels deep" % MAX_DEPTH) from None
    if size > MAX_VALUE // 4 and len(canonical.dumps(tree).encode()) > MAX_VALUE:
        raise Unrecordable("it is larger than 1 MiB", "too_large")
    return tree, list(w.marks)[:MAX_MARKS]


# Reading


def zero(tp: Any) -> Any:
    """Returns the value of a field that a recorded value does not have."""
    union = _union(tp)
    if union is not None:
        return None if type(None) in union else zero(union[0])
    fields = _fields(tp)
    if fields is not None:
        return _make(tp, {}, fields)
    if typing.get_origin(tp) is typing.Literal:
        return typing.get_args(tp)[0]
    base = typing.get_origin(tp) or tp
    if base in (str, int, float, bool, bytes, list, dict):
        return base()
    return None


def _make(tp: Any, values: dict[str, Any], fields: dict[str, Any]) -> Any:
    if typing.is_typeddict(tp):
        required = getattr(tp, "__required_keys__", frozenset())
        return {**{n: zero(t) for n, t in fields.items() if n in required and n not in values}, **values}
    for f in dataclasses.fields(tp):
        if f.init and f.name not in values and f.default is dataclasses.MISSING \
                and f.default_factory is dataclasses.MISSING:
            values[f.name] = zero(fields[f.name])
    return tp(**values)


def decode(tree: Any, tp: Any, strict: bool = True, path: str = "") -> Any:
    """Reads a value into a type, or raises Unfit.

    Strictly, a field that the type does not have and a null for a type without null are refused.
    """
    if tp in (Any, object):
        return tree
    union = _union(tp)
    if union is not None:
        return _decode_union(tree, union, strict, path)
    if tp in (None, type(None)):
        if tree is None:
            return None
        raise Unfit("%s is %s and not null" % (_where(path), _sort(tree)))
    if tree is None:
        if strict:
            raise Unfit("%s is null, and %s has no null" % (_where(path), name_of(tp)))
        return zero(tp)
    fields = _fields(tp)
    if fields is not None:
        if not isinstance(tree, dict):
            raise Unfit("%s is %s and no %s" % (_where(path), _sort(tree), name_of(tp)))
        alien = [n for n in tree if n not in fields]
        if alien and strict:
            raise Unfit("%s has the field %s, which %s does not have" % (_where(path), sorted(alien)[0], name_of(tp)))
        values = {n: decode(x, fields[n], strict, path + "/" + n) for n, x in tree.items() if n in fields}
        return _make(tp, values, fields)
    return _decode_plain(tree, tp, strict, path)


def _decode_plain(tree: Any, tp: Any, strict: bool, path: str) -> Any:
    origin = typing.get_origin(tp)
    if origin is typing.Literal:
        if tree in typing.get_args(tp):
            return tree
    elif origin is list and isinstance(tree, list):
        return [decode(x, _element(tp), strict, path + "/*") for x in tree]
    elif origin is dict and isinstance(tree, dict):
        return {n: decode(x, _element(tp), strict, path + "/" + n) for n, x in tree.items()}
    elif tp is float and isinstance(tree, (int, float)) and not isinstance(tree, bool):
        return float(tree)
    elif tp is bytes and isinstance(tree, str):
        try:
            return base64.b64decode(tree, validate=True)
        except ValueError:
            raise Unfit("%s is a text and no base64" % _where(path)) from None
    elif tp is int and isinstance(tree, bool):
        pass
    elif isinstance(tp, type) and origin is None and isinstance(tree, tp):
        return tree
    raise Unfit("%s is %s and no %s" % (_where(path), _sort(tree), name_of(tp)))


def _decode_union(tree: Any, union: tuple[Any, ...], strict: bool, path: str) -> Any:
    if tree is None and type(None) in union:
        return None
    first: Unfit | None = None
    for tp in union:
        if tp is type(None):
            continue
        try:
            return decode(tree, tp, strict, path)
        except Unfit as e:
            first = first or e
    raise first or Unfit("%s is %s" % (_where(path), _sort(tree)))


def _where(path: str) -> str:
    return "its part " + path if path else "the value"


def _sort(tree: Any) -> str:
    if tree is None:
        return "null"
    names = {bool: "a truth value", int: "a number", float: "a number", str: "a text", list: "a list"}
    return names.get(type(tree), "an object")


def check_marks(marks: list[str], tp: Any) -> None:
    """Refuses bytes where the type has a text, and a text where it has bytes."""
    for mark in marks:
        sort, path = mark[:2], mark[2:]
        there = _type_at(tp, path.split("/")[1:])
        if sort == "b:" and there is str:
            raise Unfit("%s was recorded as bytes, and is asked for as a text" % _where(path))
        if sort == "t:" and there is bytes:
            raise Unfit("%s was recorded as a text, and is asked for as bytes" % _where(path))


def _type_at(tp: Any, path: list[str]) -> Any:
    union = _union(tp)
    if union is not None:
        rest = [t for t in union if t is not type(None)]
        return _type_at(rest[0], path) if len(rest) == 1 else Any
    if not path:
        return tp
    fields = _fields(tp)
    if fields is not None:
        return _type_at(fields.get(path[0], Any), path[1:])
    if typing.get_origin(tp) in (list, dict):
        return _type_at(_element(tp), path[1:])
    return Any


def has_objects(tree: Any) -> bool:
    if isinstance(tree, list):
        return any(has_objects(x) for x in tree)
    return isinstance(tree, dict)


def ignored(tp: Any, tree: Any) -> list[str]:
    """Lists the fields of an input that the type does not have, at most 64."""
    found: dict[str, None] = {}
    _ignored(tp, tree, "", found)
    out = sorted(found)
    return out if len(out) <= MAX_MARKS else out[:MAX_MARKS - 1] + ["*"]


def _ignored(tp: Any, tree: Any, path: str, found: dict[str, None]) -> None:
    union = _union(tp)
    if union is not None:
        rest = [t for t in union if t is not type(None)]
        tp = rest[0] if len(rest) == 1 else Any
    fields = _fields(tp)
    if isinstance(tree, dict):
        for n, x in tree.items():
            if fields is None:
                if typing.get_origin(tp) is dict:
                    _ignored(_element(tp), x, path + "*/", found)
            elif x is None:
                continue
            elif n in fields:
                _ignored(fields[n], x, path + n + "/", found)
            else:
                found[path + n] = None
    elif isinstance(tree, list) and typing.get_origin(tp) is list:
        for x in tree:
            _ignored(_element(tp), x, path + "*/", found)


# Schemas


def schema(tp: Any) -> dict[str, Any]:
    """Returns a type as JSON Schema."""
    union = _union(tp)
    if union is not None:
        return {"anyOf": [schema(t) for t in union]}
    fields = _fields(tp)
    if fields is not None:
        required = sorted(_required(tp))
        out = {"type": "object", "title": name_of(tp), "properties": {n: schema(t) for n, t in fields.items()}}
        return {**out, "required": required} if required else out
    origin = typing.get_origin(tp)
    if origin is typing.Literal:
        return {"enum": list(typing.get_args(tp))}
    if origin is list:
        return {"type": "array", "items": schema(_element(tp))}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema(_element(tp))}
    simple = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object",
              bytes: "string", None: "null", type(None): "null"}
    return {"type": simple[tp]} if tp in simple else {}


def _required(tp: Any) -> list[str]:
    if typing.is_typeddict(tp):
        return list(getattr(tp, "__required_keys__", ()))
    return [f.name for f in dataclasses.fields(tp) if f.init and f.default is dataclasses.MISSING
            and f.default_factory is dataclasses.MISSING]


def of_function(f: Any, what: str) -> Any:
    """Returns the declared type of a function's result ("return") or parameter, or Any."""
    try:
        tp = typing.get_type_hints(f).get(what, Any)
    except Exception:  # an annotation that can't be resolved says nothing
        return Any
    return tp if known(tp) else Any


if sys.version_info < (3, 10):
    raise ImportError("perdure needs Python 3.10 or later")
