import { z } from 'zod';

/** The forms that settings are written in, shared by all processes. Each reads a text and says what is wrong with it. */

/** Any text that is not empty. */
export const text = z.string().min(1, 'is empty');

/** A path from the root. */
export const absolutePath = text.regex(/^\//, 'is not an absolute path');

/** A whole number within bounds, in decimal. */
export function wholeNumber(minimum: number, maximum: number) {
  return z
    .string()
    .regex(/^-?\d+$/, 'is not a whole number')
    .transform(Number)
    .refine((value) => value >= minimum && value <= maximum, `is not from ${minimum} to ${maximum}`);
}

/** One of a few words. */
export function oneOf<const Words extends readonly [string, ...string[]]>(words: Words) {
  return z.enum(words, `is not one of ${words.join(', ')}`);
}

/** `true` or `false`. */
export const flag = oneOf(['true', 'false']).transform((word) => word === 'true');

const MAX_PORT = 65_535;

/**
 * Where a gRPC server listens or is found: `unix:/absolute/path`, or `host:port` with an IPv6 address in brackets. A server at
 * port 0 takes a free one.
 */
export const rpcAddress = text
  .regex(/^(unix:\/[^\s]+|(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5})$/, 'is neither unix:/absolute/path nor host:port')
  .refine(
    (address) => address.startsWith('unix:') || Number(/\d+$/.exec(address)?.[0]) <= MAX_PORT,
    `has a port above ${MAX_PORT}`,
  );

/** Several of one form, with commas between them. */
export function listOf<Value>(form: z.ZodType<Value, string>) {
  return z
    .string()
    .transform((list) => list.split(',').map((item) => item.trim()))
    .pipe(z.array(form));
}
