import { z } from 'zod';

/** Schemas of settings, shared by all processes. */

/** Any text that is not empty. */
export const text = z.string().min(1, 'is empty');

/** An absolute path. */
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
 * The address of a gRPC server: `unix:/absolute/path`, or `host:port` with an IPv6 address in brackets. With port 0, a server
 * listens at a free port.
 */
export const rpcAddress = text
  .regex(/^(unix:\/[^\s]+|(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5})$/, 'is neither unix:/absolute/path nor host:port')
  .refine(
    (address) => address.startsWith('unix:') || Number(/\d+$/.exec(address)?.[0]) <= MAX_PORT,
    `has a port above ${MAX_PORT}`,
  );

const LOOPBACK = /^(127(\.\d{1,3}){3}|\[::1\]|localhost):/;

/** Whether a gRPC address stays within this machine: a unix socket, or loopback. */
export function isLocalAddress(address: string): boolean {
  return address.startsWith('unix:') || LOOPBACK.test(address);
}

/** Several of one form, with commas between them. */
export function listOf<Value>(form: z.ZodType<Value, string>) {
  return z
    .string()
    .transform((list) => list.split(',').map((item) => item.trim()))
    .pipe(z.array(form));
}

/** The token of the Prometheus endpoint. @param prefix - of the process's variables */
export function metricsTokenSetting(prefix: string) {
  return {
    variable: `${prefix}METRICS_TOKEN_FILE`,
    schema: z.string().regex(/^(\/|$)/, 'is not an absolute path'),
    default: '',
    about:
      'Absolute path of a file with the bearer token that a scraper of the metrics has to show (authorization of Prometheus). ' +
      'Empty: none. Read again for each page.',
  };
}
