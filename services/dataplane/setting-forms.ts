import { interfaceNameFault } from '@podwire/shared/attachment/attachment';
import type { Family } from '@podwire/shared/net/address';
import { z } from 'zod';

import { readAddressMethod } from './node/address-method.js';

/** The forms of settings that podwire-dataplane alone has. Each reads a text and says what is wrong with it. */

/** A name, or its beginning with a `*`. One that begins with `-` looks like an option that went astray. */
function patternFault(pattern: string): string | undefined {
  if (pattern.startsWith('-')) return 'begins with "-"';
  const name = pattern.endsWith('*') ? pattern.slice(0, -1) : pattern;
  if (name.includes('*')) return 'has a "*" that is not its end';
  return name === '' && pattern === '*' ? undefined : interfaceNameFault(name);
}

/** Names of interfaces, or their beginnings with a `*`, with commas between them; empty for none. */
export const interfacePatterns = z
  .string()
  .transform((list) => (list.trim() === '' ? [] : list.split(',').map((item) => item.trim())))
  .superRefine((patterns, context) => {
    for (const pattern of patterns) {
      const fault = patternFault(pattern);
      if (fault !== undefined) context.addIssue({ code: 'custom', message: `${JSON.stringify(pattern)} ${fault}` });
    }
  });

const MAX_PORT = 65_535;

/** `FIRST-LAST`, both included, of ports from 1; undefined when empty. */
export const portRange = z
  .string()
  .regex(/^(\d{1,5}-\d{1,5})?$/, 'is not FIRST-LAST')
  .transform((range) => {
    if (range === '') return undefined;
    const [first = 0, last = 0] = range.split('-').map(Number);
    return { first, last };
  })
  .refine(
    (range) => range === undefined || (range.first >= 1 && range.first <= range.last && range.last <= MAX_PORT),
    `is no range of ports from 1 to ${MAX_PORT}`,
  );

/** How the node's address of a family is found: `readAddressMethod`. */
export function addressMethod(family: Family) {
  return z.string().transform((text, context) => {
    const read = readAddressMethod(text, family);
    if (read.ok) return read.method;
    context.addIssue({ code: 'custom', message: read.fault });
    return z.NEVER;
  });
}
