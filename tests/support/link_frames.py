# SPDX-License-Identifier: Apache-2.0
"""The frames of the link in Python, written from the protocol's page alone: what the Go codec is compared with."""

import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

HEADER: Final = struct.Struct("!BBHIQQI")
PLACE: Final = struct.Struct("!IQ")
VERSION: Final = 1
ID_BYTES: Final = 16
MOST_STREAMS: Final = 32
HELLO, WELCOME = 7, 8


@dataclass(frozen=True, slots=True)
class FrameRule:
    """What a kind of frame may hold.

    :param uses: fields that need not be 0; a stream must not be
    :param least: bytes of payload
    :param most: bytes of payload
    """

    uses: str = ""
    least: int = 0
    most: int = 0


_PLACES: Final = ID_BYTES + MOST_STREAMS * PLACE.size
RULES: Final[Mapping[int, FrameRule]] = MappingProxyType(
    {
        1: FrameRule("", 32, 32),
        2: FrameRule("", 32, 96),
        3: FrameRule("", 2, 65_536),
        4: FrameRule("offset", 1, 64),
        5: FrameRule(),
        6: FrameRule("", 1, 256),
        HELLO: FrameRule("", ID_BYTES, _PLACES),
        WELCOME: FrameRule("offset", ID_BYTES, _PLACES),
        9: FrameRule("stream port"),
        10: FrameRule("stream offset ack", 1, 262_144),
        11: FrameRule("stream ack"),
        12: FrameRule("stream offset ack"),
        13: FrameRule("stream"),
        14: FrameRule(),
    }
)


def verdict(frame: bytes) -> dict[str, Any]:
    """Return what the codec says of a frame: its fields and places, None where it is refused."""
    found: dict[str, Any] = {"bytes": frame.hex(), "fields": None, "places": None}
    if len(frame) < HEADER.size:
        return found
    kind, version, *fields = HEADER.unpack_from(frame)
    rule = RULES.get(kind)
    if version != VERSION or rule is None:
        return found
    port, stream, offset, ack, length = fields
    given = {"port": port, "stream": stream, "offset": offset, "ack": ack}
    used = rule.uses.split()
    if any(given[name] for name in given if name not in used) or ("stream" in used and not stream):
        return found
    payload = frame[HEADER.size : HEADER.size + length]
    if not rule.least <= length <= rule.most or len(payload) < length:
        return found
    if kind in {HELLO, WELCOME}:
        if (length - ID_BYTES) % PLACE.size:
            return found
        pairs = [list(each) for each in PLACE.iter_unpack(payload[ID_BYTES:])]
        streams = [stream for stream, _ in pairs]
        if 0 not in streams and streams == sorted(set(streams)):
            found["places"] = pairs
    found["fields"] = [kind, *fields]
    return found


def random_frame(draw: random.Random) -> bytes:
    """Return a frame that keeps all rules, or one with a few bytes changed or cut off."""
    kind = draw.choice([*RULES])
    rule = RULES[kind]
    fields = {name: draw.randrange(1 << draw.randrange(1, 65)) for name in ("offset", "ack")}
    fields |= {"port": draw.randrange(1 << 16), "stream": draw.randrange(1, 70)}
    used = {name: value if name in rule.uses.split() else 0 for name, value in fields.items()}
    payload = draw.randbytes(draw.randint(rule.least, min(rule.most, 300)))
    if kind in {HELLO, WELCOME}:
        streams = sorted(draw.sample(range(1, 200), draw.randrange(MOST_STREAMS + 1)))
        places = [PLACE.pack(each, draw.randrange(1 << draw.randrange(1, 65))) for each in streams]
        payload = draw.randbytes(ID_BYTES) + b"".join(places)
    head = (kind, VERSION, used["port"], used["stream"], used["offset"], used["ack"], len(payload))
    made = bytearray(HEADER.pack(*head) + payload)
    while draw.random() < 0.5:
        made[draw.randrange(len(made))] = draw.randrange(256)
    return bytes(made if draw.random() < 0.9 else made[: draw.randrange(len(made))])
