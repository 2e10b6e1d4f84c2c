/** Parses JSON. @returns undefined for invalid JSON, which no JSON text evaluates to */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
