export type JsonObject = Readonly<Record<string, unknown>>;

export function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** The value of a JSON text, or undefined when it is invalid: also with anything but white space before or after it. */
export function parseJson(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return value;
  } catch {
    return undefined;
  }
}

/** The objects of an array; none for other values. */
export function objectsOf(value: unknown): readonly JsonObject[] {
  return listOf(value).filter(isObject);
}

export function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

export function textOf(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}

export function numberOf(value: unknown): number | undefined {
  return typeof value === 'number' ? value : undefined;
}
