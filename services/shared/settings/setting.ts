import { z } from 'zod';

import { absolutePathFault, rpcAddressFault } from './service-address.js';

/** Schemas of settings, shared by all processes. */

/** Any text that is not empty. */
export const text = z.string().min(1, 'is empty');

/** An absolute path. */
export const absolutePath = text.superRefine(refuse(absolutePathFault));

function refuse(faultOf: (value: string) => string | undefined) {
  return (value: string, context: z.RefinementCtx<string>): void => {
    const fault = faultOf(value);
    if (fault !== undefined) context.addIssue(fault);
  };
}

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

/** The address of a gRPC server. */
export const rpcAddress = text.superRefine(refuse(rpcAddressFault));

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
