import { Failure } from '@podwire/shared/failure/failure';

/** What placeholders stand for: `__CNI_MTU__` has the value of `CNI_MTU`. */
export type PlaceholderValues = Readonly<Record<string, string>>;

/** A whole JSON string, or a placeholder outside of one. */
const STRING_OR_PLACEHOLDER = /"(?:[^"\\]|\\.)*"|__[A-Z][A-Z0-9_]*?__/gs;

const PLACEHOLDER = /__([A-Z][A-Z0-9_]*?)__/g;

/**
 * Fills the placeholders of a network configuration, so that no value can change what the rest of the text means: inside a
 * string the value is escaped; elsewhere a number, true or false stays what it is, and anything else becomes a string.
 * @throws Failure INSTALL_REFUSED that names every placeholder without a value
 */
export function fillPlaceholders(template: string, values: PlaceholderValues): string {
  const names = [...template.matchAll(PLACEHOLDER)].flatMap(([, name]) => name ?? []);
  const unknown = [...new Set(names.filter((name) => !Object.hasOwn(values, name)))];
  if (unknown.length > 0) {
    const list = unknown.map((name) => `__${name}__`).join(', ');
    throw new Failure(
      'INSTALL_REFUSED',
      `the network configuration has placeholders without a value: ${list}; known are ${Object.keys(values).join(', ')}`,
    );
  }
  const escaped = (name: string): string => JSON.stringify(values[name]).slice(1, -1);
  const literal = (name: string): string => asLiteral(values[name] ?? '');
  return template.replace(STRING_OR_PLACEHOLDER, (found) =>
    found.startsWith('"')
      ? found.replace(PLACEHOLDER, (_, name: string) => escaped(name))
      : found.replace(PLACEHOLDER, (_, name: string) => literal(name)),
  );
}

function asLiteral(value: string): string {
  return /^(-?(0|[1-9]\d*)(\.\d+)?|true|false)$/.test(value) ? value : JSON.stringify(value);
}
