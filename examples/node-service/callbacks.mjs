// HTTP to the orchestrator, and what its answers mean.

import { hostname } from "node:os";
import { setTimeout as timer } from "node:timers/promises";

const ANSWER_MS = 10_000; // how long an answer may take; then the callback is repeated
const BACKOFF_MS = { first: 250, most: 10_000 };
const LONGEST_RETRY_AFTER_MS = 300_000;
const LONGEST_TIMER_MS = 2 ** 31 - 1;
const PROCESS = { "x-lucius-instance": `${hostname()}:${process.pid}`, "user-agent": "node-service/1" }; // for operators

// One POST. Never throws: without an answer the status is 0, and it is unknown whether the request was processed.
export async function post(url, token, body, { timeout = ANSWER_MS, signal } = {}) {
  const limit = after(timeout);
  try {
    const response = await fetch(url, {
      method: "POST",
      redirect: "manual", // the token is for this address only
      headers: { ...PROCESS, authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
    const { status, headers } = response;
    return { status, body: parsed(await response.text()), retryAfterMs: retryAfter(headers), why: `HTTP ${status}` };
  } catch (error) {
    return { status: 0, retryAfterMs: 0, why: error.cause?.code ?? error.name };
  }
}

// True for a refusal that a repeat does not change.
export function isRefusal(status) {
  return status >= 400 && status < 500 && ![408, 425, 429].includes(status);
}

// What the answer to a callback asks of us:
//   TAKEN      go on (APPLIED, DUPLICATE; LATE with an instant: the lease is lost, but a success until then counts)
//   FENCED     stop: another attempt is current, the job has ended, or the token is not good for this attempt
//   MALFORMED  this message will never be taken, though the attempt is current
//   AGAIN      say it again later; a 2xx without a disposition came from something in between
export function verdictOf({ status, body }) {
  if ([400, 413, 422].includes(status)) return "MALFORMED";
  if (isRefusal(status)) return "FENCED";
  if (status < 200 || status > 299 || typeof body?.disposition !== "string") return "AGAIN";
  return body.disposition === "LATE" && !body.lease_expires_at ? "FENCED" : "TAKEN";
}

// Send a callback, and send it again until it is answered or `latest` has come. Return the last answer.
export async function say(kind, directive, body, { latest, signal }) {
  for (let failures = 1; ; failures += 1) {
    const answer = await post(directive.callback_urls[kind], directive.callback_token, body);
    if (verdictOf(answer) !== "AGAIN") return answer;
    const wait = Math.max(answer.retryAfterMs, backoff(failures));
    if (Date.now() + wait > latest || !(await pause(wait, signal))) return answer;
  }
}

// Exponential with full jitter, so that services that failed together don't return together.
export function backoff(failures) {
  return Math.max(10, Math.random() * Math.min(BACKOFF_MS.most, BACKOFF_MS.first * 2 ** (failures - 1)));
}

// A signal after so long; fractions and very long times are no error.
export function after(ms) {
  return AbortSignal.timeout(Math.min(Math.ceil(ms), LONGEST_TIMER_MS));
}

// True when the time is over, false when the signal came first.
export function pause(ms, signal) {
  return timer(Math.min(ms, LONGEST_TIMER_MS), undefined, { signal }).then(
    () => true,
    () => false,
  );
}

function retryAfter(headers) {
  const seconds = Number(headers.get("retry-after")) || 0; // the date form is not worth a parser: backoff covers it
  return Math.min(Math.max(seconds, 0) * 1000, LONGEST_RETRY_AFTER_MS);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
