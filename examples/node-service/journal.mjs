// What this process has begun and finished, on disk, so that `kill -9` at any instant loses and repeats nothing.
//
//   open/<attempt>.json     state "begun": at work. state "finished": the RESULT is here and must still be delivered.
//   settled/<attempt>.json  delivered, or given up. Kept for a day, so that a directive that comes again is known.
//
// Every file is written whole and then renamed, and an attempt moves from one folder to the other by a rename.
// One process per folder: at its start, everything in open/ was left behind by a dead process.

import { mkdir, readFile, readdir, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { writeWhole } from "./workspace.mjs";

const REMEMBER_MS = 24 * 3600 * 1000;

export class Journal {
  constructor(folder) {
    this.open = join(folder, "open");
    this.settled = join(folder, "settled");
  }

  // Begun or finished by a process that is gone, as [attempt, entry].
  async start() {
    await mkdir(this.open, { recursive: true, mode: 0o700 });
    await mkdir(this.settled, { recursive: true, mode: 0o700 });
    await this.prune();
    const left = [];
    for (const name of await readdir(this.open)) {
      const path = join(this.open, name);
      if (name.endsWith(".json")) left.push([name.slice(0, -5), JSON.parse(await readFile(path, "utf8"))]);
      else await rm(path); // a file that was being written
    }
    return left;
  }

  // To be awaited before the ACK is sent.
  begin(attempt, directive) {
    return this.#write(attempt, { state: "begun", directive });
  }

  // To be awaited before the RESULT is sent.
  async finish(attempt, directive, result) {
    const entry = { state: "finished", directive, result, finished_at: Date.now() };
    await this.#write(attempt, entry);
    return entry;
  }

  // Nothing more is to be sent for this attempt.
  async settle(attempt) {
    const [from, to] = [this.open, this.settled].map((folder) => join(folder, `${attempt}.json`));
    await rename(from, to).catch(ignoreMissing); // already there, if its RESULT was sent again
  }

  // An attempt of the last day, or undefined.
  async recall(attempt) {
    const text = await readFile(join(this.settled, `${attempt}.json`), "utf8").catch(ignoreMissing);
    return text && JSON.parse(text);
  }

  async prune(now = Date.now()) {
    for (const name of await readdir(this.settled)) {
      const path = join(this.settled, name);
      if ((await stat(path)).mtimeMs < now - REMEMBER_MS) await rm(path);
    }
  }

  #write(attempt, entry) {
    return writeWhole(join(this.open, `${attempt}.json`), JSON.stringify(entry), 0o600);
  }
}

function ignoreMissing(error) {
  if (error.code !== "ENOENT") throw error;
}
