"""Encodes records as the JSON text of a row, and decodes them. Text is readable in the database's own shell."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from lucius.core.model.decision import EndedAttempt
from lucius.core.model.records import Event, Job, OutboxRow, Quarantined, ReviewItem, Step
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.errors import LedgerCorrupt
from lucius.ports.protocols import ProtocolVersion

_encoder = msgspec.json.Encoder()
_job = msgspec.json.Decoder(Job)

decode_step = msgspec.json.Decoder(Step).decode
decode_ended_attempt = msgspec.json.Decoder(EndedAttempt).decode
decode_outbox_row = msgspec.json.Decoder(OutboxRow).decode
_event = msgspec.json.Decoder(Event).decode
_events = msgspec.json.Decoder(list[Event]).decode
decode_quarantined = msgspec.json.Decoder(Quarantined).decode
decode_review = msgspec.json.Decoder(ReviewItem).decode
decode_protocol = msgspec.json.Decoder(ProtocolDefinition).decode
decode_protocol_version = msgspec.json.Decoder(ProtocolVersion).decode


def event(body: str) -> Event:
    """Decode an event. Raises LedgerCorrupt: Lucius never writes an event that it can't read."""
    try:
        return _event(body)
    except msgspec.DecodeError as error:
        raise LedgerCorrupt(f"an event in the ledger can't be read: {error}") from error


def event_or_none(body: str | bytes) -> Event | None:
    try:
        return _event(body)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        return None


def ended_or_none(body: str | bytes) -> EndedAttempt | None:
    try:
        return decode_ended_attempt(body)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        return None


def body(record: Struct) -> str:
    return _encoder.encode(record).decode()


def head(record: Job) -> str:
    """Encode a job without its command, which never changes and may be long."""
    return body(replace(record, command=UNSET))


def job(command: str, head: str) -> Job:
    return _job.decode(f'{{"command":{command},{head[1:]}')


def events(records: Sequence[Event]) -> str:
    """Encode the events of one commit, without the job's id, which the row has."""
    return _encoder.encode([replace(record, job_id="") for record in records]).decode()


def events_of(job_id: str, body: str) -> list[Event]:
    """Decode the events of a row. Raises LedgerCorrupt, as `event`."""
    try:
        return [replace(record, job_id=job_id) for record in _events(body)]
    except msgspec.DecodeError as error:
        raise LedgerCorrupt(f"events in the ledger can't be read: {error}") from error


def events_or_none(job_id: str, body: str) -> list[Event] | None:
    try:
        return [replace(record, job_id=job_id) for record in _events(body)]
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        return None
