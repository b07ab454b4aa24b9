// Messages of webhooks, which are signed as Standard Webhooks says.

import { createHmac, timingSafeEqual } from "node:crypto";
import { parse, type Json } from "./json.js";

/** A message is not from Perdure, or too old. */
export class NotSigned extends Error {
  override readonly name = "NotSigned";
}

/** Headers of a request, as node:http and fetch have them. */
export type Headers = { get(name: string): string | null } | Record<string, string | string[] | undefined>;

/** Options of verifyWebhook. */
export interface VerifyOptions {
  /** Seconds by which the time of a message may differ: 300 unless given. */
  tolerance?: number;
  now?: Date;
}

/** Returns the message of a webhook, or throws NotSigned. body has the bytes as they came; the secret begins with whsec_. */
export function verifyWebhook(secret: string, headers: Headers, body: Uint8Array | string, o: VerifyOptions = {}): Json {
  const id = header(headers, "webhook-id");
  const at = header(headers, "webhook-timestamp");
  if (id === "" || !/^\d{1,15}$/.test(at)) throw new NotSigned("the message has no webhook-id, or no webhook-timestamp");
  const tolerance = o.tolerance ?? 300;
  if (Math.abs((o.now ?? new Date()).getTime() / 1000 - Number(at)) > tolerance) throw new NotSigned(`the message is more than ${tolerance} s old, or from the future`);
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  if (key.length === 0) throw new TypeError("the secret is empty; it begins with whsec_");
  const want = createHmac("sha256", key).update(`${id}.${at}.`).update(body).digest();
  const signed = header(headers, "webhook-signature")
    .split(" ")
    .some((s) => {
      const got = s.startsWith("v1,") ? Buffer.from(s.slice(3), "base64") : Buffer.alloc(0);
      return got.length === want.length && timingSafeEqual(got, want);
    });
  if (!signed) throw new NotSigned("no signature of the message fits");
  return parse(typeof body === "string" ? body : Buffer.from(body).toString("utf8"));
}

function header(headers: Headers, name: string): string {
  if (typeof headers.get === "function") return (headers as { get(name: string): string | null }).get(name) ?? "";
  for (const [n, v] of Object.entries(headers)) if (n.toLowerCase() === name) return (Array.isArray(v) ? v[0] : (v as string)) ?? "";
  return "";
}
