import type { z } from 'zod';

import { violationsFailure, type Violation } from '../failure/failure.js';
import { suggestion } from '../words/closest.js';

/** One setting of a process: an environment variable. */
export interface Setting<Value> {
  /** Name of the environment variable, with the process's prefix: `PODWIRE_IPAM_LISTEN`. */
  readonly variable: string;
  /** Parses the variable's text. */
  readonly schema: z.ZodType<Value, string>;
  /** Used when the variable is absent or empty. A text, so that the documentation shows a valid value. */
  readonly default: string;
  /** Effect, unit and range, and when the setting has no effect. */
  readonly about: string;
}

export type Settings = Readonly<Record<string, Setting<unknown>>>;

export type SettingValues<Declared extends Settings> = {
  readonly [Name in keyof Declared]: Declared[Name] extends Setting<infer Value> ? Value : never;
};

export interface SettingsSource<Declared extends Settings> {
  readonly settings: Declared;
  /** Variables with this prefix belong to the process. An undeclared one is rejected as a misspelling. */
  readonly prefix: string;
  /** Further prefixes of the process's variables. Default: none. */
  readonly furtherPrefixes?: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
}

/** A variable with the project's prefix has to have the prefix of one of its processes. */
const PROJECT_PREFIX = 'PODWIRE_';
const PROCESS_PREFIXES = ['PODWIRE_IPAM_', 'PODWIRE_NODE_', 'PODWIRE_ROUTING', 'PODWIRE_BIRD_', 'PODWIRE_INSTALL_'];

/**
 * Variables that the kubelet adds to every container for a Service in its namespace (Kubernetes, "Environment
 * variables" of Services). With a Service named `podwire-ipam` they have the prefix of our settings, and are not
 * misspelled settings.
 */
const SERVICE_LINK = /_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$/;

/**
 * Reads all settings of a process from its environment.
 * @throws Failure INVALID_SETTINGS that lists every unknown variable and every invalid value
 */
export function readSettings<Declared extends Settings>(source: SettingsSource<Declared>): SettingValues<Declared>;
export function readSettings(source: SettingsSource<Settings>): Record<string, unknown> {
  const violations: Violation[] = unknownVariables(source);
  const values = Object.entries(source.settings).map(([name, setting]): [string, unknown] => {
    const value = source.env[setting.variable];
    const text = value === undefined || value === '' ? setting.default : value;
    const parsed = setting.schema.safeParse(text);
    if (parsed.success) return [name, parsed.data];
    const reason = parsed.error.issues.map((issue) => issue.message).join(', ');
    violations.push({ field: setting.variable, reason: `is ${JSON.stringify(text)}: ${reason}. ${setting.about}` });
    return [name, undefined];
  });
  if (violations.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  return Object.fromEntries(values);
}

function unknownVariables(source: SettingsSource<Settings>): Violation[] {
  const { settings, prefix, furtherPrefixes = [], env } = source;
  const declared = Object.values(settings).map((setting) => setting.variable);
  const hasPrefix = (variable: string, prefixes: readonly string[]) =>
    prefixes.some((each) => variable.startsWith(each));
  const isOwn = (variable: string) =>
    hasPrefix(variable, [prefix, ...furtherPrefixes]) ||
    (variable.startsWith(PROJECT_PREFIX) && !hasPrefix(variable, PROCESS_PREFIXES));
  return Object.keys(env)
    .filter((variable) => isOwn(variable) && !SERVICE_LINK.test(variable) && !declared.includes(variable))
    .map((field, index) => {
      // The first violation lists the settings, further violations need not repeat them.
      const list = index === 0 ? `; the settings are ${declared.join(', ')}` : '';
      return { field, reason: `is an unknown setting${suggestion(field, declared)}${list}` };
    });
}
