"""Secrets out of what is written down: settings, facts, lines of a log.

Called where a run writes (recorder.py, console.py, entry.py) and where a recipe is read (recipe_file.py). Pure: knows no file and no
environment. What counts as a secret is a guess that rather masks too much:

    a text under a name like hf_token, api_key, password      masked whole; numbers only under password and the like (max_tokens = 64 stays)
    the word after `password:` or `password =` in a line      that word, quoted or not
    a URL's user:password@, its ?sig=..., ?api_key=...        the secret part
    what has a known token's shape (hf_..., AKIA..., a JWT)   that part
    the value of a secret that is known                       wherever it stands
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

MASK = "*masked*"
SHORTEST_KNOWN = 8
"""A shorter secret is not looked for in texts, nor is a plain word or number: they would occur by chance."""

_NEVER_A_SETTING = frozenset(
    {"secret", "secrets", "password", "passwords", "passwd", "passphrase", "credential", "credentials"},
)
"""Under these even a number is masked, and a word without quotes."""
_SECRET_WORDS = _NEVER_A_SETTING | {"token", "tokens", "key", "keys", "authorization", "signature", "sig"}
_RUN_TOGETHER = ("apikey", "accesskey", "secretkey", "privatekey", "accesstoken", "authtoken", "accesskeyid", "keyid")
_ABOUT_A_SECRET = frozenset(
    {"path", "file", "dir", "folder", "mode", "name", "column", "field", "type", "size", "length", "limit", "count", "error"},
)
"""A last word that makes a name one of something else: RAY_AUTH_TOKEN_PATH, key_column, KeyError."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# Every repetition has an upper limit: what is masked may be a stranger's text, and must not take long.
_USER_INFO = re.compile(
    r"\b([a-z][a-z0-9+.-]{0,20}://)([^\s/:@'\"]{0,200}):(?!\d{1,5}(?:[/?#\s]|$))"  # what follows is no port
    r"(?:[^\s/?#'\"]{0,500}|[^\s'\"]{0,500}?)@"  # the second for a slash in a password, which AWS keys may have
    r"|\b(https?://)[^\s/:@'\"]{1,500}@",
    re.IGNORECASE,
)
_QUERY = re.compile(r"[?&;]([\w.%-]{1,60})=([^&;\s'\"#]{1,4000})")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{20,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abps]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"|(?<=Bearer )[\w.~+/=-]{12,}"
)
_HEADER = re.compile(r"(\bAuthorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?(?:\w{1,20}\s{1,3})?)[^\s'\"]{6,4000}", re.IGNORECASE)
_QUOTED = re.compile(r"([\"']?)([A-Za-z_][\w.-]{0,80})\1(\s{0,3}[=:]\s{0,3})([\"'])((?:(?!\4).){1,4000})\4")
_UNQUOTED = re.compile(
    rf"((?:{'|'.join(_NEVER_A_SETTING)})[\w.-]{{0,20}})\s{{0,3}}[=:]\s{{0,3}}([^\s,;'\"&)\]}}]{{1,4000}})", re.IGNORECASE
)
_BARE = re.compile(r"\b([A-Za-z_][\w.-]{0,80})(=)(?=[^\s,;]{0,200}\d)(?=[^\s,;]{0,200}[A-Za-z])([^\s,;'\"&)\]}]{8,4000})")


def is_secret_name(name: str) -> bool:
    """Whether what has this name is kept out of files and logs, where it is a text.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "apiKey", "max_tokens", "tokenizer", "RAY_AUTH_TOKEN_PATH")]
    [True, True, True, False, False]
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT_A_SECRET:
        return False
    return bool(_SECRET_WORDS & set(words)) or "".join(words).endswith(_RUN_TOGETHER)


def masked(value: Any, name: str = "", secrets: Collection[str] = ()) -> Any:
    """A copy of plain values (mappings, lists, texts, numbers) without their secrets; all else is as it was.

    Args:
        value: as TOML or JSON holds it.
        name: under which it stands.
        secrets: known ones (`known_secrets`), masked inside longer texts too.

    >>> masked({"max_tokens": 64, "api_key": "abc", "url": "ftp://me:pw@host/x"})
    {'max_tokens': 64, 'api_key': '*masked*', 'url': 'ftp://me:*masked*@host/x'}
    """
    match value:
        case Mapping():
            inherited = name if is_secret_name(name) else ""
            return {key: masked(part, key if is_secret_name(str(key)) else inherited or str(key), secrets) for key, part in value.items()}
        case list() | tuple():
            return [masked(part, name, secrets) for part in value]
        case str() if is_secret_name(name) and value:
            return MASK
        case str():
            return _without_known(_without_shapes(value), secrets)
        case int() | float() if not isinstance(value, bool) and _NEVER_A_SETTING & {word.lower() for word in _WORD.findall(name)}:
            return MASK
        case _:
            return value


def masked_text(text: str, secrets: Collection[str] = ()) -> str:
    """A line of a log, or a traceback, without its secrets.

    >>> masked_text("reward.kwargs = {'api_key': 'abc'} and hub_token=a1b2c3d4e5, max_tokens=64")
    "reward.kwargs = {'api_key': '*masked*'} and hub_token=*masked*, max_tokens=64"
    """
    text = _without_shapes(_without_known(text, secrets))
    text = _QUOTED.sub(lambda found: _assignment(found[0], found[2], found[5]), text)
    text = _UNQUOTED.sub(lambda found: _assignment(found[0], found[1], found[2]), text)
    return _BARE.sub(lambda found: _assignment(found[0], found[1], found[3]), text)


def _assignment(whole: str, name: str, value: str) -> str:
    if not is_secret_name(name):
        return whole
    end = whole.rindex(value)
    return whole[:end] + MASK + whole[end + len(value) :]


def _without_known(text: str, secrets: Collection[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, MASK)
    return text


def _without_shapes(text: str) -> str:
    text = _USER_INFO.sub(lambda found: f"{found[3]}{MASK}@" if found[3] else f"{found[1]}{found[2]}:{MASK}@", text)
    text = _QUERY.sub(lambda found: _assignment(found[0], found[1], found[2]), text)
    text = _HEADER.sub(lambda found: found[1] + MASK, text)
    return _SHAPES.sub(MASK, text)


def known_secrets(*sources: Mapping[str, Any]) -> frozenset[str]:
    """The texts under secret names in settings and environments, for masking them wherever they stand.

    >>> sorted(known_secrets({"HF_TOKEN": "abcdefg7", "HOME": "/home/me"}, {"reward": {"kwargs": {"password": "open-sesame"}}}))
    ['abcdefg7', 'open-sesame']
    """
    return frozenset(text for source in sources for text in _secret_texts(source, is_secret=False))


def _secret_texts(value: Any, *, is_secret: bool) -> Iterator[str]:
    match value:
        case Mapping():
            for key, part in value.items():
                yield from _secret_texts(part, is_secret=is_secret or is_secret_name(str(key)))
        case list() | tuple():
            for part in value:
                yield from _secret_texts(part, is_secret=is_secret)
        case str() if is_secret and len(value) >= SHORTEST_KNOWN and not value.isalpha() and not value.isdigit():
            yield value


def masked_keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted keys whose value was masked when it was written.

    >>> list(masked_keys({"reward": {"kwargs": {"api_key": MASK, "url": "https://here"}}}))
    ['reward.kwargs.api_key']
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from masked_keys(value, f"{prefix}{key}.")
        elif MASK in str(value):
            yield f"{prefix}{key}"
