"""The ways in which `broken` can be wrong or less than perfect, and the case that must say so."""

from typing import NamedTuple


class Fault(NamedTuple):
    caught_by: str
    sentence: str
    outcome: str = "FAIL"


FAULTS: dict[str, Fault] = {
    "no-ack": Fault("ack", "says nothing before its RESULT"),
    "late-ack": Fault("ack", "acknowledges when the work is done"),
    "double-result": Fault("result", "sends a second RESULT that says something else"),
    "repeated-result": Fault("result", "sends its RESULT again although it was accepted"),
    "wrong-lease": Fault("result", "makes up the lease in its RESULT"),
    "invalid-result": Fault("result", "calls its success OK"),
    "lost-artifact": Fault("result", "names an artifact that it has not written"),
    "no-output": Fault("result", "does not write what the client wants", "WARN"),
    "no-heartbeat": Fault("heartbeat", "works in silence"),
    "retries-bad-payload": Fault("bad-payload", "says that a payload which can't work may work next time"),
    "runs-running": Fault("duplicate-running", "starts again what is running"),
    "runs-finished": Fault("duplicate-finished", "does again what is done"),
    "forgets": Fault("duplicate-restarted", "remembers in memory only"),
    "ignores-stale": Fault("stale", "goes on with an attempt that was fenced"),
    "repeats-stale": Fault("stale", "repeats the RESULT of a fenced attempt until it is taken"),
    "works-fenced": Fault("stale", "works a fenced attempt to its end and reports it", "WARN"),
    "repeats-late": Fault("late", "repeats a RESULT that came too late until it is applied"),
    "beats-late": Fault("late", "sends heartbeats for a job that has ended"),
    "silent-cancel": Fault("cancel", "stops when cancelled and tells nobody"),
    "ignores-cancel": Fault("cancel", "works a cancelled job to its end", "WARN"),
    "wrong-token": Fault("refused-callbacks", "speaks for every attempt with the token it got last"),
    "repeats-refused": Fault("refused-callbacks", "repeats what was refused with 401 or 403"),
    "dies-on-malformed": Fault("malformed", "dies of a directive that it can't read"),
    "takes-any": Fault("malformed", "does what was meant for another service"),
    "strict-fields": Fault("malformed", "refuses a directive with a field that it does not know"),
    "serial-callbacks": Fault("slow-orchestrator", "sends one callback at a time, whoever waits"),
    "impatient": Fault("slow-orchestrator", "works again when a RESULT is not answered soon"),
    "hammers": Fault("orchestrator-errors", "repeats a refused callback without a pause"),
    "ignores-retry-after": Fault("orchestrator-errors", "comes back before it was told to"),
    "gives-up": Fault("orchestrator-errors", "does not repeat a RESULT that was answered 500"),
    "one-ack": Fault("ack-repeated", "acknowledges once, whether or not it is heard"),
    "hammers-pulls": Fault("pull-errors", "repeats a refused pull without a pause"),
    "dies-on-pull-error": Fault("pull-errors", "dies when the orchestrator is not well"),
    "trusts-silence": Fault("answer-lost", "takes a lost answer for a good one"),
    "loses-result": Fault("orchestrator-restart", "throws a RESULT away that nobody listens to"),
    "two-results": Fault("killed-mid-step", "after a kill reports a failure, and a success later"),
    "stuck-claim": Fault("killed-mid-step", "after a kill takes its own claim for someone else's"),
    "no-spool": Fault("killed-finished", "keeps a RESULT in memory until it is delivered"),
    "reruns": Fault("killed-finished", "after a kill does again what was done"),
    "rude-stop": Fault("graceful-stop", "dies of SIGTERM"),
    "silent-stop": Fault("graceful-stop", "stops at SIGTERM without a word about its work"),
    "deaf": Fault("graceful-stop", "does not heed SIGTERM"),
    "pulls-on": Fault("graceful-stop", "goes on pulling while it stops"),
    "greedy": Fault("backpressure", "pulls all there is and acknowledges what it comes to"),
    "spins": Fault("idle", "asks again at once when there is nothing"),
    "insists": Fault("refused-key", "asks again at once when its key is refused"),
    "leaves-quietly": Fault("refused-key", "exits with 0 when its key is refused"),
}
