"""Forms as browsers send them: signing in, and the second step of an act."""

from __future__ import annotations

from urllib.parse import parse_qs

from basalt.errors import InputError
from basalt.http.routes.route_table import Request

FORM = b"application/x-www-form-urlencoded"
FIELDS_MAX = 20  # of a form
NUMBER_DIGITS_MAX = 16  # of a number: more than any limit has


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; a field that is there twice is refused."""
    request.content_type((FORM,))
    try:
        given = parse_qs(
            (await request.body()).decode("utf-8"),
            keep_blank_values=True,
            strict_parsing=False,
            max_num_fields=FIELDS_MAX,
        )
    except ValueError:
        raise InputError("the form is not one of this console", hint="Load the page again.") from None
    for name, values in given.items():
        if len(values) > 1:
            raise InputError(f"the form has {name[:40]!r} twice", field=name[:40], hint="Load the page again.")
    return {name: values[0] for name, values in given.items()}


def whole_number(text: str, name: str) -> int:
    """The number in a field; `InputError` names the field."""
    digits = text.replace("_", "").replace(",", "")
    if not digits.isascii() or not digits.isdigit() or len(digits) > NUMBER_DIGITS_MAX:
        raise InputError(f"{name} is {text[:40]!r}, which is no whole number", field=name, hint="Go back and give one.")
    return int(digits)
