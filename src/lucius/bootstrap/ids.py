"""Identifiers. Job ids are UUIDv7: ordered by time, so new rows are appended at the end of an index."""

import os
import time


def new_job_id() -> str:
    millis = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (millis & (2**48 - 1)) << 80 | 0x7 << 76 | (random >> 68) << 64 | 0b10 << 62 | random & (2**62 - 1)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_lease_id() -> str:
    return os.urandom(12).hex()
