// A client and a service that use only the types that openapi-typescript generated from the OpenAPI document.
import createClient from "openapi-fetch";
import type { components, paths } from "./openapi.js";

type Command = components["schemas"]["CommandEnvelope"];
type Directive = components["schemas"]["Directive"];

declare const process: { env: Record<string, string | undefined> }; // the only part of Node in use

const baseUrl = process.env.LUCIUS_URL ?? "";
const authorization = { Authorization: `Bearer ${process.env.LUCIUS_API_KEY}` };
const api = createClient<paths>({ baseUrl, headers: authorization });

// Only the required fields: the compiler must not demand optional ones.
const command: Command = {
  tenant_id: "acme",
  request_type: "OCR",
  input_ref: process.env.INPUT_REF ?? "",
  output_ref: process.env.OUTPUT_REF ?? "",
  schema_version: "v1",
  payload: { ocr: { language: "en" } },
};
// @ts-expect-error a field that is not in the document is refused by the compiler
const misspelled: Command = { ...command, idempotencyKey: "1" };
void misspelled;

async function main(): Promise<void> {
  const submitted = await api.POST("/v1/commands", { body: command });
  if (submitted.error) throw new Error(`${submitted.error.code}: ${submitted.error.detail}`);
  const job_id: string = submitted.data.jobId;
  await finish(await pull());
  const job = await api.GET("/v1/jobs/{job_id}", { params: { path: { job_id }, query: { wait: 20 } } });
  if (job.error) throw new Error(job.error.code);
  const attempts: number = job.data.attempts_total;
  const missing = await api.GET("/v1/jobs/{job_id}", { params: { path: { job_id: "none" } } });
  console.log(JSON.stringify({ job_id, status: job.data.status, attempts, refusal: missing.error?.code }));
}

async function pull(): Promise<Directive> {
  const pulled = await api.POST("/v1/services/{service}/directives:pull", {
    params: { path: { service: "ocr" } },
    body: { wait_seconds: 20 },
  });
  const directive = pulled.data?.directives[0];
  if (directive === undefined) throw new Error(`nothing was pulled: ${pulled.error?.code}`);
  return directive;
}

async function finish(directive: Directive): Promise<void> {
  const { jobId, stepId, tenant_id, attempt_no, lease_id, callback_token } = directive;
  const answer = await api.POST("/v1/callbacks/result", {
    headers: { Authorization: `Bearer ${callback_token}` },
    body: { jobId, stepId, tenant_id, attempt_no, lease_id, status: "SUCCEEDED", result: { pages: 1 } },
  });
  if (answer.data?.disposition !== "APPLIED") throw new Error(`not applied: ${answer.error?.code}`);
}

await main();
