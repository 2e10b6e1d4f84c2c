import { z } from 'zod';

import type { Refuse } from './address-list.js';

/** DNS settings, in the form that results and configurations have them. What nobody here knows passes. */
export interface Dns extends Readonly<Record<string, unknown>> {
  /** Addresses of servers, the first to be asked first. */
  readonly nameservers?: readonly string[] | undefined;
  /** Domain for names without a dot. */
  readonly domain?: string | undefined;
  /** Domains that short names are looked for in. */
  readonly search?: readonly string[] | undefined;
  /** Options of resolv.conf(5). */
  readonly options?: readonly string[] | undefined;
}

const TEXTS = z.array(z.string({ error: 'is no text' }), { error: 'is no list' });

/** The key `dns` of a network configuration and of its `ipam` (CNI specification 1.1.0, section 1). */
export const DNS = z.looseObject(
  {
    nameservers: TEXTS.optional(),
    domain: z.string({ error: 'is no text' }).optional(),
    search: TEXTS.optional(),
    options: TEXTS.optional(),
  },
  { error: 'is no object' },
);

/** Keys of the capability `dns` (CNI conventions), each with the one of a result that it is. */
const KEY_OF_RESULT: Readonly<Record<string, string>> = {
  servers: 'nameservers',
  searches: 'search',
  options: 'options',
};

const CAPABILITY = z.record(z.string(), z.unknown());

/**
 * Reads `runtimeConfig.dns`: `servers`, `searches`, `options`, in any spelling, as containerd writes them in capitals.
 * @param place - of the value, for faults
 * @returns undefined where it asks for nothing, or is faulty
 */
export function readCapabilityDns(place: string, value: unknown, refuse: Refuse): Dns | undefined {
  if (value === null) return undefined;
  const keys = CAPABILITY.safeParse(value);
  if (!keys.success) {
    refuse({ field: place, reason: 'is no object' });
    return undefined;
  }
  const settings: Record<string, readonly string[]> = {};
  for (const [key, each] of Object.entries(keys.data)) {
    const name = KEY_OF_RESULT[key.toLowerCase()];
    if (name === undefined || each === null) continue;
    const texts = TEXTS.safeParse(each);
    if (texts.success) settings[name] = texts.data;
    else refuse({ field: `${place}.${key}`, reason: 'is no list of texts' });
  }
  return askedDns(settings);
}

/** The settings that say something: Go's encoder writes empty ones for those that were never made. */
export function askedDns(dns: Dns | null | undefined): Dns | undefined {
  const said = Object.entries(dns ?? {}).filter(([, value]) =>
    Array.isArray(value) ? value.length > 0 : value !== '',
  );
  return said.length === 0 ? undefined : Object.fromEntries(said);
}
