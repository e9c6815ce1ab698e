// The platform service `wordcount` over plain HTTP. This file is the life of an attempt; the work is in wordcount.mjs.
//
//   pulled -> begun (on disk) -> ACK, then heartbeats beside the work -> finished (on disk) -> RESULT -> settled
//
// An answer may stop it: FENCED (no RESULT is sent), or CANCELLED (a FAILED one is).

import { EventEmitter, once, setMaxListeners } from "node:events";
import { join } from "node:path";
import { after, backoff, isRefusal, pause, post, say, verdictOf } from "./callbacks.mjs";
import { attemptOf, essence, faultOf, identity } from "./directive.mjs";
import { StepFailure, never } from "./failure.mjs";
import { Journal } from "./journal.mjs";
import { execute } from "./wordcount.mjs";
import { Workspace } from "./workspace.mjs";

const SERVICE = "wordcount";
const env = process.env;
const DATA_DIR = env.LUCIUS_DATA_DIR || `.${SERVICE}`;
const CONCURRENCY = number("LUCIUS_CONCURRENCY", 4, 1);
const GRACE_MS = number("LUCIUS_GRACE", 20) * 1000;
const DELAY_MS = number("LUCIUS_SERVICE_DELAY", 0) * 1000; // every step takes that much longer: for rehearsals
const PULL_SECONDS = 20;
const PROGRESS_MS = 2_000; // between heartbeats that leave because the progress has changed
const FAREWELL_MS = 5_000; // for RESULTs on the way out; what is left then stays on disk
const LATE_WINDOW_MS = 24 * 3600 * 1000; // a RESULT is worth sending that long after its lease
const MAX_UNDELIVERED = 100; // while so many RESULTs wait, no more work is taken on
const PLACES = {
  blobRoot: env.LUCIUS_BLOB_ROOT || join(DATA_DIR, "blobs"),
  fileRoots: (env.LUCIUS_FILE_ROOTS ?? "").split(":").filter(Boolean),
  protect: [DATA_DIR, env.LUCIUS_CONFIG, env.LUCIUS_PROTOCOLS_DIR].filter(Boolean),
};

const FENCED = new StepFailure("FENCED", "this attempt no longer counts");
const CANCELLED = new StepFailure("CANCELLED", "the job is being cancelled", "TRANSIENT");
const STOPPING = new StepFailure("SERVICE_STOPPING", "the service stopped before it was done", "TRANSIENT");
const RESTARTED = new StepFailure("SERVICE_RESTARTED", "the service was ended while at work", "TRANSIENT");
const UNGUARDED = never("GUARD_MISSING", "the step may have been done before, and this service can't tell");
const INTERRUPTED = never("INTERRUPTED", "the service was ended while at work, and the step may not be repeated");

const journal = new Journal(join(DATA_DIR, "attempts"));
const working = new Map(); // attempt -> AbortController that stops it
const delivering = new Set(); // attempts whose RESULT is on its way
const bell = new EventEmitter(); // rings when either changes
const [stopping, hurry, halt] = [new AbortController(), new AbortController(), new AbortController()];
setMaxListeners(0, bell, stopping.signal, hurry.signal, halt.signal);

// Pulling

async function pullForever() {
  const url = `${env.LUCIUS_ORCHESTRATOR_URL.replace(/\/+$/, "")}/v1/services/${SERVICE}/directives:pull`;
  const options = { timeout: (PULL_SECONDS + 10) * 1000, signal: stopping.signal };
  let failures = 0;
  let idle = 0;
  while (await until(() => working.size < CONCURRENCY && delivering.size < MAX_UNDELIVERED, stopping.signal)) {
    const asked = Date.now();
    const question = { max: CONCURRENCY - working.size, wait_seconds: PULL_SECONDS };
    const answer = await post(url, env.LUCIUS_API_KEY, question, options);
    if (answer.status === 200 && Array.isArray(answer.body?.directives)) {
      const begun = answer.body.directives.filter(take).length;
      failures = 0;
      // An orchestrator that does not wait, or has nothing that we can use, must not make us spin.
      idle = begun || Date.now() - asked > 1000 ? 0 : idle + 1;
      if (idle) await pause(Math.min(1000, backoff(idle)), stopping.signal);
    } else if (isRefusal(answer.status)) {
      throw new Error(`pulling was refused: ${answer.why} ${answer.body?.code ?? ""}`);
    } else if (!stopping.signal.aborted) {
      log("orchestrator away", { why: answer.why });
      await pause(Math.max(answer.retryAfterMs, backoff(++failures)), stopping.signal);
    }
  }
}

// Begin an attempt, unless its directive makes no sense (the ACK deadline brings the job forward) or is here already.
function take(directive) {
  const fault = faultOf(directive, SERVICE);
  if (fault) {
    log("directive ignored", { why: fault });
    return false;
  }
  const attempt = attemptOf(directive);
  if (working.has(attempt) || delivering.has(attempt)) {
    log("directive seen before, still at it", names(directive));
    return false;
  }
  working.set(attempt, new AbortController()); // before anything is awaited: the next directive may be the same one
  run(attempt, directive).catch(giveUp).finally(() => leave(attempt));
  return true;
}

// One attempt

async function run(attempt, directive) {
  const known = await journal.recall(attempt);
  if (known) {
    log(`directive seen before, ${known.state}`, names(directive));
    if (known.state !== "finished") return; // it was fenced
    move(attempt);
    await deliver(attempt, { ...known, directive: essence(directive) });
    return;
  }
  await journal.begin(attempt, essence(directive));
  const task = { directive, stop: working.get(attempt), over: new AbortController() };
  const acknowledged = acknowledge(task);
  keepAlive(task);
  const result = { ...identity(directive), ...(await outcomeOf(task)) };
  task.over.abort();
  const fenced = () => task.stop.signal.reason === FENCED;
  const entry = fenced() || (await journal.finish(attempt, essence(directive), result)); // now the RESULT outlives us
  move(attempt);
  await acknowledged; // a RESULT does not overtake its ACK
  await (fenced() ? journal.settle(attempt) : deliver(attempt, entry));
}

// What the RESULT says, whatever happens.
async function outcomeOf(task) {
  const { signal } = task.stop;
  const progress = (done) => (task.progress = done);
  try {
    if (task.directive.guard) return failed(UNGUARDED); // a service with effects would look for them here
    if (!(await pause(DELAY_MS, signal))) return failed(signal.reason);
    const workspace = new Workspace(task.directive, PLACES);
    return { status: "SUCCEEDED", ...(await execute(task.directive, workspace, { signal, progress })) };
  } catch (error) {
    if (signal.aborted) return failed(signal.reason);
    if (error instanceof StepFailure) return failed(error);
    log("the work failed unexpectedly", { ...names(task.directive), error: error?.stack });
    return failed(new StepFailure("UNEXPECTED_ERROR", String(error).split("\n")[0].slice(0, 500)));
  }
}

async function acknowledge({ directive, stop }) {
  const latest = Date.parse(directive.ack_deadline);
  heed(await say("ack", directive, identity(directive), { latest, signal: halt.signal }), directive, stop);
}

// Every third of the lease, so that one lost heartbeat does not cost it, and when the progress has changed, at most every
// 2 s. Without an answer: again soon, and work goes on.
async function keepAlive(task) {
  const { directive, stop, over } = task;
  const period = Math.min(Math.max((directive.lease_seconds * 1000) / 3, 50), 600_000);
  let failures = 0;
  let wait = period;
  let reported;
  const hasChanged = () => !failures && task.progress !== reported;
  while (await rest(wait, hasChanged, over.signal)) {
    const asked = Date.now();
    reported = task.progress;
    const body = { ...identity(directive), progress: reported }; // JSON leaves it out until the work has reported any
    const options = { timeout: Math.min(period, 10_000), signal: over.signal };
    const answer = await post(directive.callback_urls.heartbeat, directive.callback_token, body, options);
    heed(answer, directive, stop);
    failures = verdictOf(answer) === "AGAIN" ? failures + 1 : 0;
    const soon = Math.max(answer.retryAfterMs, Math.min(period, backoff(failures)));
    wait = failures ? soon : Math.max(0, period * (0.8 + 0.2 * Math.random()) - (Date.now() - asked));
  }
}

// Wait for `ms`; or only until `isEarly`, which is looked at every 2 s.
async function rest(ms, isEarly, signal) {
  const due = Date.now() + ms;
  do {
    if (!(await pause(Math.min(PROGRESS_MS, Math.max(0, due - Date.now())), signal))) return false;
  } while (Date.now() < due && !isEarly());
  return true;
}

function heed(answer, directive, stop) {
  const verdict = verdictOf(answer);
  if (verdict === "FENCED" || verdict === "MALFORMED") {
    log("attempt fenced", { ...names(directive), why: reason(answer) });
    stop.abort(FENCED);
  } else if (verdict === "TAKEN" && answer.body.cancel_requested) stop.abort(CANCELLED);
}

// See a RESULT off, however long the orchestrator is away. If we must stop before that, it is on disk.
async function deliver(attempt, { directive, result, finished_at }) {
  const latest = finished_at + directive.lease_seconds * 1000 + LATE_WINDOW_MS;
  const answer = await say("result", directive, result, { latest, signal: halt.signal });
  const verdict = verdictOf(answer);
  if (verdict === "AGAIN" && halt.signal.aborted) return;
  if (verdict !== "TAKEN") log("RESULT not taken", { ...names(directive), why: reason(answer) });
  if (verdict === "MALFORMED" && result.error?.code !== "RESULT_REFUSED") {
    // Silence would hold the job until its lease ends, and another attempt would be refused again.
    const why = never("RESULT_REFUSED", `the orchestrator refused the RESULT: ${answer.why}`);
    await deliver(attempt, await journal.finish(attempt, directive, { ...identity(directive), ...failed(why) }));
    return;
  }
  await journal.settle(attempt);
}

// Start and stop

async function main() {
  const onSignal = () => (stopping.signal.aborted ? hurry : stopping).abort(); // a second one skips the grace period
  process.on("SIGTERM", onSignal).on("SIGINT", onSignal);
  for (const [attempt, entry] of await journal.start()) {
    delivering.add(attempt);
    resume(attempt, entry).catch(giveUp).finally(() => leave(attempt));
  }
  setInterval(() => journal.prune().catch(giveUp), 3600_000).unref();
  log("started", { concurrency: CONCURRENCY, undelivered: delivering.size });
  await pullForever().catch(giveUp);
  await stop();
}

// Left behind by a process that was killed: what it finished is sent, what it had begun is reported at once, rather
// than when the lease runs out.
async function resume(attempt, entry) {
  if (entry.state === "finished") return deliver(attempt, entry);
  const why = entry.directive.retry_safety === "NOT_SAFE_TO_RETRY" ? INTERRUPTED : RESTARTED;
  const result = { ...identity(entry.directive), ...failed(why) };
  return deliver(attempt, await journal.finish(attempt, entry.directive, result));
}

async function stop() {
  log("stopping", { working: working.size, undelivered: delivering.size });
  await until(() => working.size === 0, AbortSignal.any([hurry.signal, after(GRACE_MS)]));
  for (const controller of working.values()) controller.abort(STOPPING);
  await until(() => working.size + delivering.size === 0, after(FAREWELL_MS));
  halt.abort();
  log("stopped", { undelivered: delivering.size });
  process.exit();
}

// Without a journal, or refused by the orchestrator, there is no going on.
function giveUp(error) {
  log("giving up", { error: String(error?.stack ?? error) });
  process.exitCode = 1;
  stopping.abort();
}

function move(attempt) {
  working.delete(attempt);
  delivering.add(attempt);
  bell.emit("ring");
}

function leave(attempt) {
  working.delete(attempt);
  delivering.delete(attempt);
  bell.emit("ring");
}

// True when the condition holds, false when the signal came first.
async function until(condition, signal) {
  while (!signal.aborted && !condition()) await once(bell, "ring", { signal }).catch(() => {});
  return !signal.aborted;
}

function failed({ code, message, failureClass }) {
  return { status: "FAILED", failure_class: failureClass, error: { code, message } };
}

function reason({ body, why }) {
  return body?.disposition ?? body?.code ?? why;
}

function names({ jobId, stepId, attempt_no }) {
  return { jobId, stepId, attempt_no };
}

function number(name, usual, least = 0) {
  const value = Number(env[name] || usual);
  if (value >= least) return value;
  throw new Error(`${name} must be a number from ${least} on`);
}

// Never a token, never a payload.
function log(message, fields = {}) {
  console.error(JSON.stringify({ at: new Date().toISOString(), service: SERVICE, message, ...fields }));
}

if (!env.LUCIUS_ORCHESTRATOR_URL || !env.LUCIUS_API_KEY) {
  console.error("LUCIUS_ORCHESTRATOR_URL and LUCIUS_API_KEY must be set");
  process.exit(2);
}
await main();
