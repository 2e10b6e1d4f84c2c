import { violationsFailure } from '@podwire/shared/failure/failure';

import { DATAPLANE, IPAM, PLUGIN, type Place } from './command-line/global-options.js';
import type { Input } from './command-line/verb.js';

/** Where the services are. */
export interface Places {
  readonly ipam: string;
  readonly dataplane: string;
  readonly plugin: string;
}

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Each service's place: by its option, else by the variable that Podwire's own processes know it by, else the usual one.
 * @throws Failure INVALID_SETTINGS that lists every nonsense variable
 */
export function placesOf(globals: Input, env: Environment): Places {
  const violations: { readonly field: string; readonly reason: string }[] = [];
  const read = (place: Place): string => {
    const given = globals.get(place) ?? env[place.variable];
    const text = given === undefined || given === '' ? place.usual : given;
    const value = place.form.read(text);
    if (value.ok) return value.value;
    violations.push({ field: place.variable, reason: `is "${text}", which ${value.fault}` });
    return '';
  };
  const places = { ipam: read(IPAM), dataplane: read(DATAPLANE), plugin: read(PLUGIN) };
  if (violations.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  return places;
}
