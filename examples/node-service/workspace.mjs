// Where an attempt reads and writes. Refs come from clients, so every path is checked after decoding, and again after
// links were followed: neither `..` nor a symbolic link leads out of the folder it must stay in.

import { randomUUID } from "node:crypto";
import { mkdir, open, realpath, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join, relative, isAbsolute } from "node:path";
import { StepFailure, never } from "./failure.mjs";

const REF = /^(file|blob):\/\/([^/?#@]*)(\/[^?#]*)?$/;

export class Workspace {
  // `fileRoots`: folders for clients' file refs; undefined allows whatever this process may read and write.
  constructor(directive, { blobRoot, fileRoots }) {
    this.directive = directive;
    this.blobRoot = blobRoot;
    this.fileRoots = fileRoots;
    this.root = filePath(parse(directive.workspace_ref));
  }

  // The path behind a ref of the client or of an earlier step.
  async locate(ref) {
    const parts = parse(ref);
    if (parts.scheme === "blob") return inside(this.blobRoot, parts.host + parts.path);
    const path = filePath(parts);
    if (this.fileRoots && !(await within(path, [this.root, ...this.fileRoots]))) {
      throw never("FORBIDDEN_REF", `${ref} is outside the folders this service may use`);
    }
    return path;
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
    let path = await this.locate(this.directive.output_ref);
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
  const real = await resolved(path);
  for (const root of roots) {
    const rest = relative(await resolved(root), real);
    if (rest === "" || (rest.split("/")[0] !== ".." && !isAbsolute(rest))) return true;
  }
  return false;
}

// Links followed as far as the path exists; what is not there yet can't be a link.
async function resolved(path) {
  try {
    return await realpath(path);
  } catch (error) {
    if (!["ENOENT", "ENOTDIR"].includes(error.code) || dirname(path) === path) throw error;
    return join(await resolved(dirname(path)), basename(path));
  }
}

async function isFolder(path) {
  return stat(path).then((found) => found.isDirectory(), () => false);
}
