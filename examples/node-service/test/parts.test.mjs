// What needs no orchestrator.

import assert from "node:assert/strict";
import { mkdir, mkdtemp, readFile, readdir, rm, symlink, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { pathToFileURL } from "node:url";
import { backoff, verdictOf } from "../callbacks.mjs";
import { attemptOf, faultOf } from "../directive.mjs";
import { Journal } from "../journal.mjs";
import { Counter, execute } from "../wordcount.mjs";
import { Workspace } from "../workspace.mjs";

const folder = await mkdtemp(join(tmpdir(), "wordcount-"));
after(() => rm(folder, { recursive: true }));
const ref = (...names) => pathToFileURL(join(folder, ...names)).href;
const directive = (fields = {}) => ({
  jobId: "job-1",
  stepId: "wordcount",
  tenant_id: "acme",
  attempt_no: 1,
  lease_id: "lease-1",
  lease_seconds: 60,
  ack_deadline: "2030-01-01T00:00:00.000Z",
  service: "wordcount",
  callback_token: "token",
  callback_urls: { ack: "http://o/ack", heartbeat: "http://o/heartbeat", result: "http://o/result" },
  input_ref: ref("in.txt"),
  workspace_ref: ref("workspace"),
  output_ref: ref("out.json"),
  payload: {},
  last_step: true,
  ...fields,
});
const places = { blobRoot: join(folder, "blobs"), fileRoots: undefined };
const working = () => ({ signal: new AbortController().signal, progress: () => {} });

test("words are counted the same wherever a chunk ends", () => {
  const bytes = Buffer.from("Füße  und\tHände\n\nein 🙂 Gesicht");
  for (let size = 1; size <= bytes.length; size += 1) {
    const counter = new Counter();
    for (let at = 0; at < bytes.length; at += size) counter.add(bytes.subarray(at, at + size));
    assert.deepEqual(counter.total(), { words: 6, lines: 3, chars: 30, bytes: bytes.length });
  }
});

test("short words are left out on request", () => {
  const counter = new Counter(3);
  counter.add(Buffer.from("a bb ccc dddd"));
  assert.equal(counter.total().words, 2);
});

test("a text that is not UTF-8 fails for good, even if it ends within a character", () => {
  for (const bytes of [Buffer.from([0xff, 0xfe]), Buffer.from("ü").subarray(0, 1)]) {
    const counter = new Counter();
    const count = () => (counter.add(bytes), counter.total());
    assert.throws(count, { code: "UNSUPPORTED_INPUT", failureClass: "NON_RETRYABLE" });
  }
});

test("the work leaves an artifact of its attempt, and on the last step the client's output", async () => {
  await writeFile(join(folder, "in.txt"), "one two\n");
  const seen = [];
  const task = directive({ attempt_no: 2 });
  const done = await execute(task, new Workspace(task, places), { ...working(), progress: (at) => seen.push(at) });
  assert.deepEqual(done.artifact_refs, [ref("workspace", "wordcount", "2", "counts.json")]);
  assert.equal(done.result.words, 2);
  assert.deepEqual(seen, [1]);
  for (const path of ["workspace/wordcount/2/counts.json", "out.json"]) {
    assert.deepEqual(JSON.parse(await readFile(join(folder, path), "utf8")), done.result);
  }
});

test("an output folder gets a file named after the job", async () => {
  await writeFile(join(folder, "in.txt"), "one");
  const task = directive({ output_ref: "blob://results/of-today/" });
  await execute(task, new Workspace(task, places), working());
  assert.deepEqual(await readdir(join(folder, "blobs/results/of-today")), ["job-1-counts.json"]);
});

test("an input that is not there, or is no file, fails for good", async () => {
  for (const [input_ref, code] of [
    [ref("nowhere.txt"), "INPUT_NOT_FOUND"],
    [ref("in.txt", "deeper"), "INPUT_NOT_FOUND"],
    [pathToFileURL(folder).href, "UNSUPPORTED_INPUT"],
    ["https://example.org/a.txt", "UNSUPPORTED_REF"],
  ]) {
    const task = directive({ input_ref });
    const work = execute(task, new Workspace(task, places), working());
    await assert.rejects(work, { code, failureClass: "NON_RETRYABLE" });
  }
});

test("no ref leads out of the folders it may use", async () => {
  const secret = join(folder, "secret");
  const allowed = join(folder, "allowed");
  await mkdir(secret);
  await mkdir(allowed);
  await symlink(secret, join(allowed, "link"));
  const workspace = new Workspace(directive(), { blobRoot: allowed, fileRoots: [allowed] });
  for (const bad of [
    ref("secret", "a"),
    ref("allowed", "link", "a"),
    `${ref("allowed")}/../secret/a`,
    `${ref("allowed")}/%2e%2e/secret/a`,
    `${ref("allowed")}%2F..%2Fsecret/a`,
    `${ref("allowed")}/a%00b`,
    ref("allowedtoo"),
    "file://elsewhere/etc/hosts",
    "file:relative",
    "blob://link/a",
    "blob://../secret/a",
    "blob://%2e%2e/secret/a",
    "blob:///a",
    "blob://user@container/a",
    "blob://container/a?sig=1",
    "blob://container/%zz",
  ]) {
    await assert.rejects(workspace.locate(bad), { failureClass: "NON_RETRYABLE" }, bad);
  }
  const anywhere = new Workspace(directive(), places);
  await assert.rejects(anywhere.locate(`${ref("allowed")}/../secret/a`), { code: "FORBIDDEN_REF" });
  assert.equal(await workspace.locate(ref("allowed", "new", "a b")), join(allowed, "new", "a b"));
  assert.equal(await workspace.locate("blob://container/a%20b"), join(allowed, "container", "a b"));
});

test("a step id can't lead an artifact elsewhere", async () => {
  for (const stepId of ["..", "../../x", "/etc"]) {
    const workspace = new Workspace(directive({ stepId }), places);
    await assert.rejects(workspace.write("a", "b"), { code: "FORBIDDEN_REF" }, stepId);
  }
});

test("a directive that makes no sense is known by its fault, and fields to come are not one", () => {
  assert.equal(faultOf(directive({ something: "new" }), "wordcount"), "");
  for (const [field, value] of [
    ["jobId", undefined],
    ["lease_id", ""],
    ["callback_token", 7],
    ["service", "ocr"],
    ["attempt_no", 0],
    ["attempt_no", "1"],
    ["lease_seconds", -1],
    ["lease_seconds", null],
    ["ack_deadline", "soon"],
    ["payload", []],
    ["callback_urls", null],
    ["callback_urls", { ack: "http://o/a", heartbeat: "http://o/h", result: "file:///etc/passwd" }],
  ]) {
    assert.notEqual(faultOf(directive({ [field]: value }), "wordcount"), "", `${field}: ${JSON.stringify(value)}`);
  }
  for (const odd of [null, 7, "text", []]) assert.notEqual(faultOf(odd, "wordcount"), "");
});

test("an attempt is job, step, number and lease together", () => {
  const ids = [{}, { jobId: "job-2" }, { stepId: "other" }, { attempt_no: 2 }, { lease_id: "lease-2" }];
  assert.equal(new Set(ids.map((fields) => attemptOf(directive(fields)))).size, 5);
  assert.equal(attemptOf(directive()), attemptOf(directive({ callback_token: "renewed" })));
});

test("every answer to a callback has one meaning", () => {
  const said = (disposition, more) => ({ status: 200, body: { disposition, ...more } });
  for (const [answer, verdict] of [
    [said("APPLIED"), "TAKEN"],
    [said("DUPLICATE"), "TAKEN"],
    [said("LATE"), "FENCED"],
    [said("LATE", { lease_expires_at: "2030-01-01T00:00:00.000Z" }), "TAKEN"],
    [{ status: 409, body: { disposition: "STALE" } }, "FENCED"],
    [{ status: 401 }, "FENCED"],
    [{ status: 403 }, "FENCED"],
    [{ status: 404 }, "FENCED"],
    [{ status: 400 }, "MALFORMED"],
    [{ status: 413 }, "MALFORMED"],
    [{ status: 422 }, "MALFORMED"],
    [{ status: 0 }, "AGAIN"],
    [{ status: 200, body: undefined }, "AGAIN"],
    [{ status: 302 }, "AGAIN"],
    [{ status: 408 }, "AGAIN"],
    [{ status: 429 }, "AGAIN"],
    [{ status: 500 }, "AGAIN"],
    [{ status: 503 }, "AGAIN"],
  ]) {
    assert.equal(verdictOf(answer), verdict, JSON.stringify(answer));
  }
});

test("pauses grow, differ, and have a limit", () => {
  const most = (failures) => Math.max(...Array.from({ length: 200 }, () => backoff(failures)));
  assert.ok(most(1) <= 250 && most(5) > 1000 && most(2000) <= 10_000);
});

test("the journal knows what was begun, finished and settled, and forgets after a day", async () => {
  const path = join(folder, "attempts");
  const journal = new Journal(path);
  assert.deepEqual(await journal.start(), []);
  await journal.begin("a", { jobId: "a" });
  await journal.begin("b", { jobId: "b" });
  await journal.finish("b", { jobId: "b" }, { status: "SUCCEEDED" });
  await journal.finish("c", { jobId: "c" }, { status: "FAILED" });
  await journal.settle("c");
  await journal.settle("c");
  await writeFile(join(path, "open", ".cut-short.tmp"), "{");
  const left = Object.fromEntries(await new Journal(path).start());
  assert.deepEqual([left.a.state, left.b.state, left.b.result.status], ["begun", "finished", "SUCCEEDED"]);
  assert.deepEqual(Object.keys(left), ["a", "b"]);
  assert.equal((await journal.recall("c")).result.status, "FAILED");
  assert.equal(await journal.recall("unheard of"), undefined);
  const yesterday = Date.now() / 1000 - 25 * 3600;
  await utimes(join(path, "settled", "c.json"), yesterday, yesterday);
  await journal.prune();
  assert.equal(await journal.recall("c"), undefined);
});
