import { isAbsolute, join } from 'node:path';
import { parseArgs } from 'node:util';

import { isObject, parseJson, type JsonObject } from './specification/json.js';
import { DEFAULT_BIN_DIRS, IPAM, PRESETS, subjectOf, type Kind, type Subject } from './subject.js';

/** The options of the command line. */
export interface Options {
  readonly subject: Subject;
  readonly only: readonly string[];
  readonly seed: number;
  readonly pods: number;
  readonly parallel: number;
  readonly kills: number;
  readonly isVerbose: boolean;
  readonly junit: string | undefined;
  readonly json: string | undefined;
  /** A folder with the plugin's records, beside the case's own; a command that prints them, one a line. */
  readonly leases: string | undefined;
  readonly holdings: string | undefined;
}

export const USAGE = `usage: podwire-conformance --plugin NAME|PATH [OPTIONS…]

Judges a CNI plugin by the CNI specification 1.1.0, as root, in network namespaces of its own.

  --plugin NAME|PATH   ${Object.keys(PRESETS).join(', ')}, or the path of any other
  --config FILE        its network configuration, or a list whose first plugin of its name is taken; {leases} becomes a folder of each case's own
  --kind KIND          interface (default), ipam, or meta: works on what earlier plugins of a chain made
  --ipam NAME          ${Object.keys(IPAM).join(', ')} instead of the configuration's
  --bin-dir DIR        where the plugins are (default: the first of ${DEFAULT_BIN_DIRS.join(', ')} that has it)
  --resident           the plugin is served by a process that runs already: it has to see the containers' namespaces
  --socket PATH        of podwire's resident, for the presets podwire and podwire-ipam
  --node-netns PATH    network namespace that the plugin calls the node (default: one of each case's own; podwire: the caller's)
  --leases DIR         a folder in which the plugin keeps its records
  --holdings COMMAND   prints what the plugin holds, one allocation a line
  --keeps REGEX        leftover lines that are the node's own, and no container's: 'route blackhole'
  --only ID            a case, or all that begin with ID; may be given several times
  --seed N             of the moments at which the plugin is killed (printed)
  --kills N            how many times it is, in ADD and in DEL (default 20)
  --pods N             containers of a storm (default 110)
  --parallel N         commands of a storm at a time (default 16)
  --verbose            shows each failed run and its result
  --junit FILE         report for machines
  --json FILE          the same with all evidence

Status: the number of MUST cases that failed, 200 at most; 254 where nothing could be judged.
`;

const DEFINITIONS = {
  plugin: { type: 'string' },
  config: { type: 'string' },
  kind: { type: 'string' },
  ipam: { type: 'string' },
  'bin-dir': { type: 'string' },
  resident: { type: 'boolean' },
  socket: { type: 'string' },
  'node-netns': { type: 'string' },
  leases: { type: 'string' },
  holdings: { type: 'string' },
  keeps: { type: 'string' },
  only: { type: 'string', multiple: true },
  seed: { type: 'string' },
  kills: { type: 'string' },
  pods: { type: 'string' },
  parallel: { type: 'string' },
  verbose: { type: 'boolean' },
  junit: { type: 'string' },
  json: { type: 'string' },
  help: { type: 'boolean' },
} as const;

export interface OptionsDeps {
  readonly exists: (path: string) => boolean;
  /** @throws Error where it cannot be read */
  readonly read: (path: string) => string;
  /** Default seed. */
  readonly seed: number;
}

/** An error of the command line. */
export class UsageError extends Error {}

/**
 * Reads a command line.
 * @returns undefined for a request for help
 * @throws UsageError with the error
 */
export function readOptions(args: readonly string[], deps: OptionsDeps): Options | undefined {
  const values = parsed(args);
  if (values.help === true) return undefined;
  return {
    subject: readSubject(values, deps),
    only: values.only ?? [],
    seed: count('seed', values.seed, deps.seed),
    kills: count('kills', values.kills, 20),
    pods: count('pods', values.pods, 110),
    parallel: Math.max(1, count('parallel', values.parallel, 16)),
    isVerbose: values.verbose === true,
    junit: values.junit,
    json: values.json,
    leases: values.leases,
    holdings: values.holdings,
  };
}

type Values = ReturnType<typeof parsed>;

function parsed(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options: DEFINITIONS, strict: true }).values;
  } catch (error) {
    throw new UsageError(error instanceof Error ? error.message : String(error));
  }
}

function count(name: string, text: string | undefined, otherwise: number): number {
  if (text === undefined) return otherwise;
  if (!/^\d{1,9}$/.test(text)) throw new UsageError(`--${name} ${text} is no number from 0 to 999999999`);
  return Number(text);
}

function readSubject(values: Values, deps: OptionsDeps): Subject {
  const { plugin } = values;
  if (plugin === undefined) throw new UsageError('--plugin is missing: name the plugin to test');
  const name = plugin.split('/').at(-1) ?? plugin;
  const binDir = binDirOf(plugin, values, deps);
  const program = plugin.includes('/') ? plugin : join(binDir, plugin);
  if (!isAbsolute(program)) throw new UsageError(`${program} is no absolute path`);
  if (!deps.exists(program)) throw new UsageError(`there is no ${program}: give its path, or --bin-dir`);
  const preset = Object.hasOwn(PRESETS, name) ? PRESETS[name] : undefined;
  const kind = readKind(values.kind) ?? preset?.kind ?? 'interface';
  const template = withOptions(configOf(name, values, deps) ?? preset?.template ?? { type: name }, values);
  const isResident = values.resident ?? preset?.isResident ?? false;
  const netns = values['node-netns'];
  const subject = subjectOf({ ...preset, name, binDir, program, kind, template, isResident });
  return {
    ...subject,
    ...(netns === undefined ? {} : { nodeNetns: netns }),
    ...(values.keeps === undefined ? {} : { keeps: pattern(values.keeps) }),
  };
}

function binDirOf(plugin: string, values: Values, { exists }: OptionsDeps): string {
  const given = values['bin-dir'];
  if (given !== undefined) return given;
  const found = DEFAULT_BIN_DIRS.find((folder) => exists(plugin.includes('/') ? folder : join(folder, plugin)));
  return found ?? '/opt/cni/bin';
}

function pattern(text: string): RegExp {
  try {
    return new RegExp(text);
  } catch (error) {
    throw new UsageError(`--keeps: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function readKind(text: string | undefined): Kind | undefined {
  if (text === undefined || text === 'interface' || text === 'ipam' || text === 'meta') return text;
  throw new UsageError(`--kind ${text} is none of interface, ipam, meta`);
}

function configOf(name: string, { config }: Values, { read }: OptionsDeps): JsonObject | undefined {
  if (config === undefined) return undefined;
  const value = parseJson(read(config));
  if (!isObject(value)) throw new UsageError(`${config} holds no JSON object`);
  if (!Array.isArray(value.plugins)) return value;
  const plugins = value.plugins.filter(isObject);
  const found = plugins.find(({ type }) => type === name) ?? plugins[0];
  if (found === undefined) throw new UsageError(`${config} lists no plugin`);
  return found;
}

function withOptions(template: JsonObject, { ipam, socket }: Values): JsonObject {
  if (ipam !== undefined && !Object.hasOwn(IPAM, ipam)) {
    throw new UsageError(`--ipam ${ipam} is none of ${Object.keys(IPAM).join(', ')}; write another into --config`);
  }
  const withIpam = ipam === undefined ? template : { ...template, ipam: IPAM[ipam] };
  if (socket === undefined) return withIpam;
  const inner = withIpam.ipam;
  const isOurs = isObject(inner) && inner.socket !== undefined;
  return { ...withIpam, socket, ...(isOurs ? { ipam: { ...inner, socket } } : {}) };
}
