// The whole process against a small orchestrator of our own. `lucius conformance` asks for far more.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";

const SERVICE = fileURLToPath(new URL("../service.mjs", import.meta.url));
let folder, orchestrator, children;

// Hands out what is in `queue`, writes down what it is told, and answers as `answer(kind, body)` says.
class Orchestrator {
  queue = [];
  told = [];
  answer = () => ({ disposition: "APPLIED" });
  #news = new EventEmitter();
  #server = createServer(async (request, response) => {
    const body = JSON.parse(Buffer.concat(await request.toArray()));
    const kind = request.url.split("/").at(-1);
    const [status, answer] = kind === "directives:pull" ? [200, await this.#pull(body)] : this.#callback(kind, body);
    response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(answer));
  });

  async start() {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
    this.url = `http://127.0.0.1:${this.#server.address().port}`;
  }

  stop() {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  give(...directives) {
    this.queue.push(...directives);
    this.#news.emit("news");
  }

  // What was told of this kind, once there is so much of it.
  async heard(kind, count = 1) {
    const found = () => this.told.filter((one) => one.kind === kind).map((one) => one.body);
    while (found().length < count) await once(this.#news, "news", { signal: AbortSignal.timeout(10_000) });
    return found();
  }

  async #pull({ max }) {
    if (!this.queue.length) await once(this.#news, "news", { signal: AbortSignal.timeout(300) }).catch(() => {});
    return { directives: this.queue.splice(0, max) };
  }

  #callback(kind, body) {
    this.told.push({ kind, body });
    const { status = 200, ...answer } = this.answer(kind, body);
    this.#news.emit("news");
    return [status, answer];
  }
}

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "wordcount-"));
  await writeFile(join(folder, "in.txt"), "one two three\n");
  children = [];
  orchestrator = new Orchestrator();
  await orchestrator.start();
});

afterEach(async () => {
  for (const child of children) await end(child, "SIGKILL");
  orchestrator.stop();
  await rm(folder, { recursive: true });
});

function start(delay = 0) {
  const env = {
    ...process.env,
    LUCIUS_ORCHESTRATOR_URL: orchestrator.url,
    LUCIUS_API_KEY: "key",
    LUCIUS_DATA_DIR: join(folder, "data"),
    LUCIUS_FILE_ROOTS: folder,
    LUCIUS_SERVICE_DELAY: String(delay),
    LUCIUS_GRACE: "60.0001",
  };
  const child = spawn(process.execPath, [SERVICE], { env, stdio: "ignore" });
  children.push(child);
  return child;
}

async function end(child, signal) {
  if (child.exitCode !== null || child.signalCode !== null) return child.exitCode;
  child.kill(signal);
  return (await once(child, "exit"))[0];
}

// Until the service has read that its RESULT was taken.
async function settled() {
  const there = () => readdir(join(folder, "data", "attempts", "settled"));
  for (let tries = 0; (await there()).length === 0; tries += 1) {
    assert.ok(tries < 1000, "not settled");
    await pause(10);
  }
}

function directive(jobId, fields = {}) {
  const ref = (...names) => pathToFileURL(join(folder, ...names)).href;
  const url = (kind) => `${orchestrator.url}/v1/callbacks/${kind}`;
  return {
    jobId,
    stepId: "wordcount",
    tenant_id: "acme",
    service: "wordcount",
    attempt_no: 1,
    lease_id: `lease-${jobId}`,
    lease_seconds: 60,
    ack_deadline: new Date(Date.now() + 30_000).toISOString(),
    callback_token: "token",
    callback_urls: { ack: url("ack"), heartbeat: url("heartbeat"), result: url("result") },
    input_ref: ref("in.txt"),
    workspace_ref: ref("workspace"),
    output_ref: ref("out", jobId),
    payload: {},
    last_step: true,
    ...fields,
  };
}

test("a directive is acknowledged, kept alive and answered; one that makes no sense stops nothing", async () => {
  start(0.5);
  orchestrator.give({ jobId: "bad" }, directive("a", { lease_seconds: 0.5 }), directive("b", { lease_seconds: 0.5 }));
  const results = await orchestrator.heard("result", 2);
  assert.deepEqual(results.map((result) => result.status), ["SUCCEEDED", "SUCCEEDED"]);
  assert.equal(results[0].result.words, 3);
  assert.deepEqual(new Set(results.map((result) => result.jobId)), new Set(["a", "b"]));
  assert.equal((await orchestrator.heard("ack", 2)).length, 2);
  assert.ok((await orchestrator.heard("heartbeat", 4)).length >= 4);
});

test("a directive that comes again is worked on once, and its RESULT sent again", async () => {
  start(0.2);
  orchestrator.give(directive("a"), directive("a"));
  const [first] = await orchestrator.heard("result");
  await settled();
  orchestrator.give(directive("a"));
  assert.deepEqual((await orchestrator.heard("result", 2))[1], first);
  assert.equal((await orchestrator.heard("ack")).length, 1);
});

test("a step that may have been done before is refused, for we can't tell", async () => {
  start();
  orchestrator.give(directive("a", { attempt_no: 2, guard: { previous_attempts: 1 } }));
  const [result] = await orchestrator.heard("result");
  assert.deepEqual([result.failure_class, result.error.code], ["NON_RETRYABLE", "GUARD_MISSING"]);
});

test("a finished RESULT survives an orchestrator that is away and a kill", async () => {
  orchestrator.answer = (kind) => (kind === "result" ? { status: 503 } : { disposition: "APPLIED" });
  const first = start();
  orchestrator.give(directive("a"));
  const [before] = await orchestrator.heard("result");
  await end(first, "SIGKILL");
  orchestrator.answer = () => ({ disposition: "APPLIED" });
  orchestrator.told = [];
  start();
  assert.deepEqual(await orchestrator.heard("result"), [before]);
  await settled();
  orchestrator.give(directive("a"));
  assert.deepEqual(await orchestrator.heard("result", 2), [before, before]);
  assert.deepEqual(await orchestrator.heard("ack", 0), []);
});

test("what was at work when the process was killed is reported at the next start", async () => {
  const first = start(60);
  orchestrator.give(directive("a"), directive("b", { retry_safety: "NOT_SAFE_TO_RETRY" }));
  await orchestrator.heard("ack", 2);
  await end(first, "SIGKILL");
  start();
  const results = await orchestrator.heard("result", 2);
  const told = Object.fromEntries(results.map(({ jobId, status, error }) => [jobId, [status, error.code]]));
  assert.deepEqual(told, { a: ["FAILED", "SERVICE_RESTARTED"], b: ["FAILED", "INTERRUPTED"] });
});

test("work stops when the job is cancelled, and without a word when another attempt counts", async () => {
  const child = start(60);
  orchestrator.answer = (kind, { jobId }) =>
    jobId === "stale" ? { status: 409, disposition: "STALE" } : { disposition: "APPLIED", cancel_requested: true };
  orchestrator.give(directive("stale"), directive("cancelled"));
  const [result] = await orchestrator.heard("result");
  assert.deepEqual([result.jobId, result.error.code], ["cancelled", "CANCELLED"]);
  assert.equal(await end(child, "SIGTERM"), 0);
  assert.equal((await orchestrator.heard("result")).length, 1);
});

test("a RESULT that is refused as malformed becomes a failure", async () => {
  start();
  orchestrator.answer = (kind, { status }) => (status === "SUCCEEDED" ? { status: 422 } : { disposition: "APPLIED" });
  orchestrator.give(directive("a"));
  assert.equal((await orchestrator.heard("result", 2))[1].error.code, "RESULT_REFUSED");
});

test("on SIGTERM work is finished first; on a second one it is given up, and said so", async () => {
  const patient = start(0.5);
  orchestrator.give(directive("a"));
  await orchestrator.heard("ack");
  assert.equal(await end(patient, "SIGTERM"), 0);
  const hurried = start(60);
  orchestrator.give(directive("b"));
  await orchestrator.heard("ack", 2);
  hurried.kill("SIGTERM");
  const again = setInterval(() => hurried.kill("SIGTERM"), 50); // the first may still be under way
  const [code] = await once(hurried, "exit", { signal: AbortSignal.timeout(20_000) }); // far less than the grace period
  clearInterval(again);
  assert.equal(code, 0);
  const results = await orchestrator.heard("result", 2);
  assert.deepEqual(results.map((result) => result.error?.code), [undefined, "SERVICE_STOPPING"]);
});

test("a key that is refused ends the process", async () => {
  orchestrator.stop();
  orchestrator = new Orchestrator();
  const refusing = createServer((_, response) => response.writeHead(401).end("{}")).listen(0, "127.0.0.1");
  await once(refusing, "listening");
  orchestrator.url = `http://127.0.0.1:${refusing.address().port}`;
  assert.equal((await once(start(), "exit"))[0], 1);
  refusing.closeAllConnections();
  refusing.close();
});
