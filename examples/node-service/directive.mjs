// What a directive must have, and what is kept of it.

import { createHash } from "node:crypto";

const REFS = ["input_ref", "workspace_ref", "output_ref"];
const TEXTS = ["jobId", "stepId", "tenant_id", "lease_id", "callback_token", ...REFS];
const CALLBACKS = ["ack", "heartbeat", "result"];

// Why a directive can't be worked on, or "". Fields that we don't know are none of our business.
export function faultOf(directive, service) {
  if (!isObject(directive)) return "not an object";
  const missing = TEXTS.find((name) => typeof directive[name] !== "string" || directive[name] === "");
  if (missing) return `${missing} is missing`;
  if (directive.service !== service) return "meant for another service";
  if (!Number.isInteger(directive.attempt_no) || directive.attempt_no < 1) return "attempt_no is not 1 or more";
  if (typeof directive.lease_seconds !== "number" || !(directive.lease_seconds > 0)) return "no lease";
  if (Number.isNaN(Date.parse(directive.ack_deadline))) return "ack_deadline is not an instant";
  if (!isObject(directive.payload)) return "payload is not an object";
  const wrong = CALLBACKS.find((name) => !isWebAddress(directive.callback_urls?.[name]));
  return wrong ? `callback_urls.${wrong} is not an HTTP address` : "";
}

// An attempt is these four, hashed because ids may hold what file names may not.
export function attemptOf({ jobId, stepId, attempt_no, lease_id }) {
  return createHash("sha256").update(JSON.stringify([jobId, stepId, attempt_no, lease_id])).digest("hex");
}

// Every callback says whom it is about.
export function identity({ jobId, stepId, tenant_id, attempt_no, lease_id }) {
  return { jobId, stepId, tenant_id, attempt_no, lease_id };
}

// All that is needed to report after a restart. No document, no payload.
export function essence(directive) {
  const { callback_urls, callback_token, lease_seconds, retry_safety } = directive;
  return { ...identity(directive), callback_urls, callback_token, lease_seconds, retry_safety };
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isWebAddress(text) {
  return typeof text === "string" && /^https?:\/\/[^/]/.test(text) && URL.canParse(text);
}
