// Checks the published OpenAPI and AsyncAPI documents with common tools and prints every problem as JSON.
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { Parser } from "@asyncapi/parser";
import { createConfig, lint } from "@redocly/openapi-core";

const schemas = new URL("../../../schemas/", import.meta.url);

async function lintOpenApi() {
  const config = await createConfig({ extends: ["recommended"] });
  const found = await lint({ ref: fileURLToPath(new URL("openapi.json", schemas)), config });
  return found.map(({ severity, ruleId, message, location }) => ({
    severity,
    rule: ruleId,
    message,
    where: location.map((place) => place.pointer ?? "").join(" "),
  }));
}

async function parseAsyncApi() {
  const text = await readFile(new URL("asyncapi.json", schemas), "utf8");
  const { diagnostics } = await new Parser().parse(text);
  const severities = ["error", "warn", "info", "hint"];
  return diagnostics.map(({ severity, code, message, path }) => ({
    severity: severities[severity],
    rule: code,
    message,
    where: path.join("/"),
  }));
}

console.log(JSON.stringify({ openapi: await lintOpenApi(), asyncapi: await parseAsyncApi() }));
