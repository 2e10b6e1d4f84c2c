import type { z } from 'zod';

import { violationsFailure, type Violation } from '../failure/failure.js';

/** One setting of a process: an environment variable, and what it means. */
export interface Setting<Value> {
  /** Name of the environment variable, with the process's prefix: `PODWIRE_IPAM_LISTEN`. */
  readonly variable: string;
  /** Reads the variable's text. */
  readonly schema: z.ZodType<Value, string>;
  /** Used when the variable is absent or empty, as text, so that the documentation shows what could be typed. */
  readonly default: string;
  /** Effect, unit and range, and when it has no effect. */
  readonly about: string;
}

export type Settings = Readonly<Record<string, Setting<unknown>>>;

export type SettingValues<Declared extends Settings> = {
  readonly [Name in keyof Declared]: Declared[Name] extends Setting<infer Value> ? Value : never;
};

export interface SettingsSource<Declared extends Settings> {
  readonly settings: Declared;
  /** Variables with this prefix belong to the process; one that is not declared is refused as a misspelling. */
  readonly prefix: string;
  /** Further beginnings of the process's variables. Default: none. */
  readonly furtherPrefixes?: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
}

/** Variables that begin like a setting of Podwire have to be one of some process. */
const PROJECT_PREFIX = 'PODWIRE_';
const PROCESS_PREFIXES = [
  'PODWIRE_IPAM_',
  'PODWIRE_DATAPLANE_',
  'PODWIRE_ROUTING',
  'PODWIRE_BIRD_',
  'PODWIRE_PLUGIN_',
  'PODWIRE_INSTALL_',
];

/**
 * Variables that the kubelet adds to every container for a Service in its namespace (Kubernetes, "Environment
 * variables" of Services). With a Service named `podwire-ipam` they have the prefix of our settings, and are not
 * misspelled settings.
 */
const SERVICE_LINK = /_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$/;

/**
 * Reads all settings of a process from its environment.
 * @throws Failure INVALID_SETTINGS that lists every unknown variable and every nonsense value
 */
export function readSettings<Declared extends Settings>(source: SettingsSource<Declared>): SettingValues<Declared>;
export function readSettings(source: SettingsSource<Settings>): Record<string, unknown> {
  const violations: Violation[] = unknownVariables(source);
  const values = Object.entries(source.settings).map(([name, setting]): [string, unknown] => {
    const given = source.env[setting.variable];
    const text = given === undefined || given === '' ? setting.default : given;
    const parsed = setting.schema.safeParse(text);
    if (parsed.success) return [name, parsed.data];
    const reason = parsed.error.issues.map((issue) => issue.message).join(', ');
    violations.push({ field: setting.variable, reason: `is ${JSON.stringify(text)}: ${reason}. ${setting.about}` });
    return [name, undefined];
  });
  if (violations.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  return Object.fromEntries(values);
}

function unknownVariables({ settings, prefix, furtherPrefixes = [], env }: SettingsSource<Settings>): Violation[] {
  const declared = Object.values(settings).map((setting) => setting.variable);
  const begins = (variable: string, prefixes: readonly string[]) => prefixes.some((each) => variable.startsWith(each));
  const ours = (variable: string) =>
    begins(variable, [prefix, ...furtherPrefixes]) ||
    (variable.startsWith(PROJECT_PREFIX) && !begins(variable, PROCESS_PREFIXES));
  return Object.keys(env)
    .filter((variable) => ours(variable) && !declared.includes(variable) && !SERVICE_LINK.test(variable))
    .map((field, place) => {
      // Once is enough to look it up in.
      const list = place === 0 ? `; the settings are ${declared.join(', ')}` : '';
      return { field, reason: `is no setting of this release${list}` };
    });
}
