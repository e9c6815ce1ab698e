// The work: words, lines and characters of a UTF-8 text of any size, in a little memory. Replace this file with yours.

import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { StepFailure, never } from "./failure.mjs";

const CHUNK_BYTES = 256 * 1024;
const WITHOUT_WAITING = constants.O_RDONLY | (constants.O_NONBLOCK ?? 0); // a named pipe must not hold us up
const GONE = {
  ENOENT: "INPUT_NOT_FOUND",
  ENOTDIR: "INPUT_NOT_FOUND",
  ENAMETOOLONG: "INPUT_NOT_FOUND",
  EACCES: "INPUT_FORBIDDEN",
};
const SPACE = /\s/u;

// `signal` is aborted when the attempt must stop; `progress` takes
// `{ done, total, unit }`, or a number from 0 to 1. Returns what the RESULT says.
export async function execute(directive, workspace, { signal, progress }) {
  const minLength = directive.payload.min_length ?? 1;
  if (!Number.isInteger(minLength) || minLength < 1) throw never("INVALID_PAYLOAD", "min_length must be 1 or more");
  const counts = await count(await workspace.locate(directive.input_ref), minLength, { signal, progress });
  const report = `${JSON.stringify(counts, null, 2)}\n`;
  const ref = await workspace.write("counts.json", report);
  if (directive.last_step) await workspace.writeOutput("counts.json", report);
  return { result: counts, artifact_refs: [ref] };
}

async function count(path, minLength, { signal, progress }) {
  const counter = new Counter(minLength);
  try {
    const file = await open(path, WITHOUT_WAITING);
    try {
      const found = await file.stat();
      if (!found.isFile()) throw never("UNSUPPORTED_INPUT", "the input is not a file");
      let seen = 0;
      for await (const chunk of file.createReadStream({ highWaterMark: CHUNK_BYTES, autoClose: false })) {
        signal.throwIfAborted();
        counter.add(chunk);
        seen += chunk.length;
        progress({ done: seen, total: found.size, unit: "byte" });
      }
    } finally {
      await file.close();
    }
  } catch (error) {
    if (error.code in GONE) throw never(GONE[error.code], `can't read the input: ${error.code}`);
    if (error.syscall) throw new StepFailure("STORAGE_ERROR", `reading the input: ${error.code}`);
    throw error;
  }
  return counter.total();
}

// Takes a text in pieces that may end within a word, even within a character.
export class Counter {
  constructor(minLength = 1) {
    this.minLength = minLength;
    this.decoder = new TextDecoder("utf-8", { fatal: true });
    this.words = this.lines = this.chars = this.bytes = 0;
    this.length = 0; // of the word that is not over yet
    this.last = "\n";
  }

  add(bytes) {
    this.bytes += bytes.length;
    this.#text(this.#decode(bytes, { stream: true }));
  }

  total() {
    this.#text(this.#decode());
    this.#endWord();
    const { words, lines, chars, bytes } = this;
    return { words, lines: this.last === "\n" ? lines : lines + 1, chars, bytes };
  }

  #decode(...args) {
    try {
      return this.decoder.decode(...args);
    } catch {
      throw never("UNSUPPORTED_INPUT", "the input is not UTF-8 text");
    }
  }

  #text(text) {
    for (const char of text) {
      this.chars += 1;
      if (char === "\n") this.lines += 1;
      if (SPACE.test(char)) this.#endWord();
      else this.length += 1;
      this.last = char;
    }
  }

  #endWord() {
    if (this.length >= this.minLength) this.words += 1;
    this.length = 0;
  }
}
