"""Arithmetic, read as an expression and computed here: nothing is evaluated by Python."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from roll.core.errors import ToolFailed
from roll.envs.tools.tool import Tool, text_argument, text_parameter

LONGEST = 1000
"""Characters of an expression."""
LARGEST_BITS = 4096
"""Bits of a whole number, on the way to the result or as the result."""
DIGITS = 12
"""Significant ones of a result that is no whole number."""
OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
SIGNS: Mapping[type[ast.AST], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    name: getattr(math, name) for name in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "floor", "ceil", "gcd")
} | {"abs": abs, "round": round, "min": min, "max": max}
CONSTANTS = {"pi": math.pi, "e": math.e}


class Calculator(Tool):
    """The tool `calculator`, for players of your own that use it as the policy does."""

    name = "calculator"
    description = f"Computes an expression of numbers with + - * / // % ** ( ), {', '.join(FUNCTIONS)}, pi and e."
    parameters = text_parameter("expression", "for example (3 + 4) * sqrt(2)")

    async def run(self, arguments: Mapping[str, Any]) -> str:
        return compute(text_argument(arguments, "expression"))


def compute(expression: str) -> str:
    """Raises `ToolFailed`."""
    if len(expression) > LONGEST:
        raise ToolFailed(f"the expression has more than {LONGEST} characters")
    try:
        value = _value(ast.parse(expression.strip().replace("^", "**"), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolFailed("this is no expression that can be computed") from None
    except (ArithmeticError, TypeError) as error:
        raise ToolFailed(str(error)) from None
    return str(value) if isinstance(value, int) else f"{value:.{DIGITS}g}"


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in SIGNS:
            return _checked(SIGNS[type(sign)](_value(operand)))
        case ast.BinOp(left=left, op=by, right=right) if type(by) in OPERATORS:
            one, other = _value(left), _value(right)
            if isinstance(by, ast.Pow):
                _check_power(one, other)
            return _checked(OPERATORS[type(by)](one, other))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in FUNCTIONS:
            return _checked(FUNCTIONS[name](*map(_value, given)))
    raise ValueError


def _check_power(base: int | float, exponent: int | float) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > LARGEST_BITS:
        raise OverflowError("the result is too large")


def _checked(value: Any) -> int | float:
    if isinstance(value, complex) or (isinstance(value, int) and value.bit_length() > LARGEST_BITS):
        raise OverflowError("the result is too large, or no real number")
    return value  # type: ignore[no-any-return]
