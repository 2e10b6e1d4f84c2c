import type { JsonObject } from '../../records/json/json.js';

/** What a rewrite starts from: the value as it was stored, and its JSON. */
export interface Previous<Value> {
  readonly value: Value;
  readonly raw: JsonObject;
}
