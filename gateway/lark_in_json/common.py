"""Terminals that a definition may import, as regular expressions. They match what llguidance's of the same name do."""

from __future__ import annotations

from typing import Final

_EXPONENT: Final = r"[eE][+-]?[0-9]+"
_FLOAT: Final = rf"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:{_EXPONENT})?|[0-9]+{_EXPONENT}"
_NUMBER: Final = rf"{_FLOAT}|[0-9]+"

COMMON: Final = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "_EXP": _EXPONENT,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?(?:{_FLOAT})",
    "NUMBER": _NUMBER,
    "SIGNED_NUMBER": f"[+-]?(?:{_NUMBER})",
    "ESCAPED_STRING": r'"(?:[^"\\]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "C_COMMENT": r"\/\*(?:[^*]|\*+[^*\/])*\*+\/",
    "SQL_COMMENT": r"--[^\n]*",
}
