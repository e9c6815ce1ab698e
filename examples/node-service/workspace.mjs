// Where an attempt reads and writes. Refs come from clients, so every path is checked after decoding, and again after
// links were followed: neither `..` nor a symbolic link leads out of the folder it must stay in.

import { randomUUID } from "node:crypto";
import { mkdir, open, realpath, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join, relative, isAbsolute } from "node:path";
import { StepFailure, never } from "./failure.mjs";

// Files that only a data directory of Lucius has: this service may not be told where that is.
const DATA_FILES = ["token.secret", "webhook.secret", "webhook-master.secret", "dev.key", "ledger.db"];
const RESERVED_NAMES = [
  /^(lucius\.(yaml|yml|json)|ledger\.db|dev\.key|kubeconfig|id_(rsa|dsa|ecdsa|ed25519)|\.env|\.env\..*)$/i,
  /^\.(netrc|git-credentials|npmrc|pypirc|pgpass)$|\.(secret|pem|p12|pfx|jks|kdbx)$/i,
];
const RESERVED_BELOW_FILE_ROOTS = /\.key$/i; // among blobs rather a Keynote document
const RESERVED_FOLDERS = /^\.(lucius|ssh|aws|azure|kube|gnupg|docker)$/i;
const REF = /^(file|blob):\/\/([^/?#@]*)(\/[^?#]*)?$/;

export class Workspace {
  // `fileRoots`: folders for clients' file refs. `protect`: files and folders of Lucius or of this service in them.
  constructor(directive, { blobRoot, fileRoots = [], protect = [] }) {
    this.directive = directive;
    this.blobRoot = blobRoot;
    this.fileRoots = fileRoots;
    this.root = filePath(parse(directive.workspace_ref));
    const { tenant_id, jobId } = directive;
    const everyJob = this.root.endsWith(`/lucius/${tenant_id}/${jobId}`) ? [dirname(dirname(this.root))] : [];
    const ofLucius = (directive.ref_rules ?? []).flatMap((rules) => rules.protected ?? []);
    this.protect = [...protect, ...everyJob, ...ofLucius];
  }

  // The path behind a ref of the client or of an earlier step.
  async locate(ref, use = "input") {
    const parts = parse(ref);
    const path =
      parts.scheme === "blob" ? await inside(this.blobRoot, parts.host + parts.path) : filePath(parts);
    if (await within(path, [this.root])) return path;
    await this.#checkRules(ref, use, parts.scheme, path);
    const blobDepth = await depth(path, [this.blobRoot]); // the nearest folder around the path decides
    const protectedDepth = await depth(path, this.protect);
    if (protectedDepth >= 0 && protectedDepth >= blobDepth) {
      throw never("FORBIDDEN_REF", `${ref} is a file of Lucius itself, or of another job`);
    }
    const root = await this.#nearestRoot(path);
    if (!root) {
      throw never("FORBIDDEN_REF", `${ref} is outside the folders this service may use: LUCIUS_FILE_ROOTS names them`);
    }
    const fault = await faultBelow(root, path);
    if (fault) throw never("FORBIDDEN_REF", `${ref}: ${fault}`);
    return path;
  }

  // The folder that decides about a path, with the names that lead from it to the path, links followed.
  async #nearestRoot(path) {
    let nearest;
    for (const folder of [this.blobRoot, ...this.fileRoots]) {
      const names = await below(path, folder);
      if (!names || (nearest && names.length > nearest.names.length)) continue;
      nearest = { folder, names, isBlob: folder === this.blobRoot && !this.fileRoots.includes(folder) };
    }
    return nearest;
  }

  // The tenant's ref policy comes with the directive: a ref must satisfy each of its rules.
  async #checkRules(ref, use, scheme, path) {
    const stored = await below(path, this.blobRoot); // container and path, if this is a blob, whatever it is called
    for (const rules of this.directive.ref_rules ?? []) {
      const reason = refusal(rules, use, scheme, await resolved(path), stored);
      if (reason) throw never("FORBIDDEN_REF", `${ref}: ${reason}`);
    }
  }

  // Write an artifact of this attempt. A folder for each attempt: a fenced one never overwrites a newer one's.
  async write(name, data) {
    const { stepId, attempt_no } = this.directive;
    const path = await inside(this.root, `${stepId}/${attempt_no}/${name}`);
    await this.#store(path, data);
    return `file://${path.split("/").map(encodeURIComponent).join("/")}`;
  }

  // Write what the client wants, on the job's last step. In a folder it is named after the job.
  async writeOutput(name, data) {
    let path = await this.locate(this.directive.output_ref, "output");
    if (this.directive.output_ref.endsWith("/") || (await isFolder(path))) {
      path = await inside(path, `${this.directive.jobId}-${name}`);
    }
    await this.#store(path, data);
  }

  async #store(path, data) {
    try {
      await mkdir(dirname(path), { recursive: true });
      await writeWhole(path, data);
    } catch (error) {
      if (["EACCES", "EPERM", "EROFS", "ENOTDIR", "EEXIST", "EISDIR", "ENAMETOOLONG"].includes(error.code)) {
        throw never("OUTPUT_FORBIDDEN", `can't write ${path}: ${error.code}`);
      }
      throw new StepFailure("STORAGE_ERROR", `writing ${path}: ${error.code}`);
    }
  }
}

// Readers see the old file or the new one, never half of one.
export async function writeWhole(path, data, mode = 0o644) {
  const temporary = join(dirname(path), `.${randomUUID()}.tmp`);
  try {
    const file = await open(temporary, "wx", mode);
    try {
      await file.writeFile(data);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

function parse(ref) {
  const match = REF.exec(ref);
  if (!match) throw never("UNSUPPORTED_REF", "only file: and blob: refs, without query, fragment or credentials");
  try {
    return { scheme: match[1], host: decodeURIComponent(match[2]), path: decodeURIComponent(match[3] ?? "") };
  } catch {
    throw never("UNSUPPORTED_REF", "the ref is not percent-encoded as it should be");
  }
}

function filePath({ scheme, host, path }) {
  if (scheme !== "file" || !["", "localhost"].includes(host) || !isAbsolute(path)) {
    throw never("UNSUPPORTED_REF", "a file ref must be file:///absolute/path");
  }
  return refuseOddNames(path);
}

async function inside(root, name) {
  refuseOddNames(name);
  const path = join(root, name);
  if (isAbsolute(name) || path === join(root) || !(await within(path, [root]))) {
    throw never("FORBIDDEN_REF", `${JSON.stringify(name)} leads outside its folder`);
  }
  return path;
}

function refuseOddNames(path) {
  if (/[\0\\]/.test(path) || path.split("/").includes("..")) {
    throw never("FORBIDDEN_REF", `${JSON.stringify(path)} is not a plain path`);
  }
  return path;
}

async function within(path, roots) {
  for (const root of roots) if (await below(path, root)) return true;
  return false;
}

// How many names the longest of the folders around a path has, links followed; -1 without one.
async function depth(path, roots) {
  let most = -1;
  for (const root of roots) {
    if (await below(path, root)) most = Math.max(most, segments(await resolved(root)).length);
  }
  return most;
}

// Why a path is not reachable below a root; "" if it is.
async function faultBelow({ folder, names, isBlob }, path) {
  for (let depth = 0; depth <= names.length; depth++) {
    const place = join(await resolved(folder), ...names.slice(0, depth));
    for (const name of DATA_FILES) {
      if (await isFile(join(place, name))) return `it lies in a data directory of Lucius: a folder around it holds ${name}`;
    }
  }
  const asWritten = relative(folder, path).split("/"); // one of these names may be a link
  for (const found of [names, asWritten[0] === ".." ? [] : asWritten]) {
    const hidden = found.find((name) => name.startsWith("."));
    if (hidden && !isBlob) return `${hidden} is hidden: below a file root no name may begin with a dot`;
    const reserved = found.find((name) => RESERVED_FOLDERS.test(name)) ?? found.at(-1) ?? "";
    const patterns = [RESERVED_FOLDERS, ...RESERVED_NAMES, ...(isBlob ? [] : [RESERVED_BELOW_FILE_ROOTS])];
    if (patterns.some((pattern) => pattern.test(reserved))) {
      return `the name ${reserved} is reserved for configuration and keys`;
    }
  }
  return "";
}

// The names that lead from a folder to a path, links followed; undefined if it is not below the folder.
async function below(path, root) {
  const rest = relative(await resolved(root), await resolved(path)).split("/");
  return rest[0] === ".." || isAbsolute(rest.join("/")) ? undefined : rest.filter(Boolean);
}

function refusal(rules, use, scheme, path, stored) {
  const schemes = use === "input" ? rules.input_schemes : rules.output_schemes;
  if (schemes && !schemes.includes(scheme)) return `${scheme}: is no scheme for ${use}s`;
  if (rules.containers && stored && !rules.containers.includes(stored[0])) return "not a permitted container";
  const names = stored ?? segments(path);
  const prefixes = rules.prefixes?.map((prefix) => prefix.replace(stored ? /^blob:\/\// : /^file:\/\//, ""));
  if (prefixes && !prefixes.some((prefix) => startsWith(names, prefix))) return "outside the permitted prefixes";
  if (stored || scheme !== "file") return "";
  const roots = rules.file_roots;
  return roots && !roots.some((folder) => startsWith(segments(path), folder)) ? "outside the permitted folders" : "";
}

function segments(path) {
  return path.split("/").filter(Boolean);
}

// Whole segments: `in/acme` is no beginning of `in/acme2/a`, and `https://host` none of any blob or file.
function startsWith(names, prefix) {
  return segments(prefix).every((name, index) => name === names[index]);
}

// Links followed as far as the path exists; what is not there yet can't be a link.
async function resolved(path) {
  try {
    return await realpath(path);
  } catch (error) {
    if (!["ENOENT", "ENOTDIR", "ENAMETOOLONG"].includes(error.code) || dirname(path) === path) throw error;
    return join(await resolved(dirname(path)), basename(path));
  }
}

async function isFile(path) {
  return stat(path).then((found) => found.isFile(), () => false);
}

async function isFolder(path) {
  return stat(path).then((found) => found.isDirectory(), () => false);
}
