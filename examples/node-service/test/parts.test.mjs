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
const places = { blobRoot: join(folder, "blobs"), fileRoots: [folder] };
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
  assert.deepEqual(seen, [{ done: 8, total: 8, unit: "byte" }]);
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
    [ref("a".repeat(300)), "INPUT_NOT_FOUND"],
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
  const unset = new Workspace(directive(), { blobRoot: join(folder, "blobs") });
  await assert.rejects(unset.locate(ref("allowed", "a")), { code: "FORBIDDEN_REF" });
  const guarded = new Workspace(directive(), { ...places, protect: [secret] });
  await assert.rejects(guarded.locate(ref("secret", "a")), { code: "FORBIDDEN_REF" });
  await assert.rejects(guarded.locate(ref("allowed", "link", "a")), { code: "FORBIDDEN_REF" });
  assert.equal(await workspace.locate("blob://container/a%20b"), join(allowed, "container", "a b"));
});

test("files of Lucius and of other jobs below the blob folder are no blobs", async () => {
  const root = join(folder, "shared");
  const workspace_ref = ref("shared", "lucius", "acme", "job-1");
  const ref_rules = [{ input_schemes: ["blob", "file"], protected: [join(root, "in", "protocols")] }];
  const protect = [join(root, "in", "state")];
  const workspace = new Workspace(directive({ workspace_ref, ref_rules }), { blobRoot: root, protect });
  await mkdir(join(root, "in", "state"), { recursive: true });
  await symlink("state", join(root, "in", "link"));
  for (const bad of [
    "blob://lucius/globex/job-9/ocr/1/t.txt",
    "blob://lucius/acme/job-2/ocr/1/t.txt",
    "blob://in/protocols/a.yaml",
    "blob://in/state/a",
    "blob://in/link/a",
    ref("shared", "in", "protocols", "a.yaml"),
  ]) {
    await assert.rejects(workspace.locate(bad), { code: "FORBIDDEN_REF", failureClass: "NON_RETRYABLE" }, bad);
  }
  assert.equal(await workspace.locate("blob://lucius/acme/job-1/a"), join(root, "lucius", "acme", "job-1", "a"));
  assert.equal(await workspace.locate("blob://in/a"), join(root, "in", "a"));
  const around = new Workspace(directive(), { ...places, protect: [folder] });
  assert.equal(await around.locate("blob://in/a"), join(folder, "blobs", "in", "a"));
  await assert.rejects(around.locate(ref("docs", "a")), { code: "FORBIDDEN_REF" });
});

test("a data directory of Lucius below the blob folder or a file root is recognized by its files", async () => {
  const root = join(folder, "wide");
  for (const name of ["data/token.secret", "data/in/a", "docs/a"]) {
    await mkdir(join(root, name, ".."), { recursive: true });
    await writeFile(join(root, name), "text");
  }
  for (const use of [{ blobRoot: root }, { blobRoot: places.blobRoot, fileRoots: [root] }]) {
    const workspace = new Workspace(directive(), use);
    const named = (...names) => (use.fileRoots ? ref("wide", ...names) : `blob://${names.join("/")}`);
    for (const bad of [named("data", "token.secret"), named("data", "in", "a"), named("data", "new", "a")]) {
      await assert.rejects(workspace.locate(bad, "output"), { code: "FORBIDDEN_REF" }, bad);
    }
    assert.equal(await workspace.locate(named("docs", "a")), join(root, "docs", "a"));
  }
});

test("names of configuration and key files are refused", async () => {
  const workspace = new Workspace(directive(), { ...places, fileRoots: [folder] });
  for (const name of ["tls.pem", "TOKEN.SECRET", "lucius.yaml", "kubeconfig", ".env.local", "vault.kdbx"]) {
    await assert.rejects(workspace.locate(`blob://in/${name}`, "output"), { code: "FORBIDDEN_REF" }, name);
    await assert.rejects(workspace.locate(ref("docs", name), "output"), { code: "FORBIDDEN_REF" }, name);
  }
  await assert.rejects(workspace.locate("blob://in/.ssh/a"), { code: "FORBIDDEN_REF" });
  assert.equal(await workspace.locate("blob://in/env.local"), join(places.blobRoot, "in", "env.local"));
});

test("hidden files below a file root are refused, and in the blob folder they are not", async () => {
  const home = join(folder, "home");
  await mkdir(join(home, "dotfiles"), { recursive: true });
  await mkdir(join(home, ".git"));
  await writeFile(join(home, "dotfiles", "bashrc"), "alias");
  await symlink("dotfiles/bashrc", join(home, ".bashrc"));
  await symlink(".git", join(home, "link"));
  const workspace = new Workspace(directive(), { blobRoot: join(home, ".lucius", "blobs"), fileRoots: [home] });
  for (const names of [[".bashrc"], [".vault-token"], ["app", ".git", "config"], ["link", "config"], [".new", "a"]]) {
    await assert.rejects(workspace.locate(ref("home", ...names), "output"), { code: "FORBIDDEN_REF" }, names.join("/"));
  }
  assert.equal(await workspace.locate("blob://in/.parts/a"), join(home, ".lucius", "blobs", "in", ".parts", "a"));
  assert.equal(await workspace.locate(ref("home", "dotfiles", "bashrc")), join(home, "dotfiles", "bashrc"));
  const below = new Workspace(directive(), { ...places, fileRoots: [home, join(home, ".git")] });
  assert.equal(await below.locate(ref("home", ".git", "config")), join(home, ".git", "config"));
});

test("a ref must satisfy each rule of the tenant's policy", async () => {
  const ref_rules = [
    { input_schemes: ["blob", "https", "file"], output_schemes: ["blob"], protected: [join(folder, "allowed")] },
    { prefixes: ["in/acme", "https://in/globex", `file://${folder}/docs`], containers: ["in"] },
  ];
  const workspace = new Workspace(directive({ ref_rules, output_ref: "blob://in/globex/a" }), places);
  assert.equal(await workspace.locate("blob://in/acme/a"), join(folder, "blobs", "in", "acme", "a"));
  assert.equal(await workspace.locate(ref("docs", "a")), join(folder, "docs", "a"));
  assert.equal(await workspace.locate(ref("blobs", "in", "acme", "a")), join(folder, "blobs", "in", "acme", "a"));
  assert.equal(await workspace.locate(ref("workspace", "a")), join(folder, "workspace", "a"));
  for (const bad of [
    "blob://in/globex/a",
    "blob://in/acme2/a",
    "blob://in/acme/%2e%2e/globex/a",
    "blob://out/acme/a",
    ref("blobs", "in", "globex", "a"),
    ref("other", "a"),
    ref("allowed", "a"),
  ]) {
    await assert.rejects(workspace.locate(bad), { code: "FORBIDDEN_REF" }, bad);
  }
  await assert.rejects(workspace.locate(ref("docs", "a"), "output"), { code: "FORBIDDEN_REF" });
  await assert.rejects(workspace.writeOutput("a", "b"), { code: "FORBIDDEN_REF" });
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
