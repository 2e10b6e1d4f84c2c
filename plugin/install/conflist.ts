import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

/** A chain member: its type and any further keys. */
const MEMBER = z.looseObject({ type: z.string().min(1) });

const CONFLIST = z.looseObject({
  cniVersion: z.string().min(1).optional(),
  cniVersions: z.array(z.string()).optional(),
  name: z.string().min(1),
  plugins: z.array(MEMBER).min(1),
});

type ChainMember = z.infer<typeof MEMBER>;
export type Conflist = z.infer<typeof CONFLIST>;

/** `type` of Podwire's member of a chain, and name of its program. */
const PLUGIN_TYPE = 'podwire';

/** A parsed network configuration and whether Podwire owns it. */
export type ParsedConflist =
  | { readonly kind: 'ours'; readonly conflist: Conflist }
  | { readonly kind: 'foreign'; readonly types: readonly string[] }
  | { readonly kind: 'unreadable' };

/** Parses a file of the directory of network configurations: a list or a single plugin. */
export function readConflist(text: string): ParsedConflist {
  const json = parseJson(text);
  const list = CONFLIST.safeParse(json);
  if (list.success) {
    const types = list.data.plugins.map(({ type }) => type);
    return types.includes(PLUGIN_TYPE) ? { kind: 'ours', conflist: list.data } : { kind: 'foreign', types };
  }
  const alone = MEMBER.safeParse(json);
  return alone.success ? { kind: 'foreign', types: [alone.data.type] } : { kind: 'unreadable' };
}

/**
 * Parses the network configuration to install.
 * @throws Failure INSTALL_REFUSED unless it is a JSON list of plugins with a name and exactly one podwire plugin
 */
export function requireConflist(text: string, source: string): Conflist {
  const reject = (reason: string): never => {
    throw new Failure('INSTALL_REFUSED', `the network configuration of ${source} ${reason}`);
  };
  const json = parseJson(text);
  if (json === undefined) return reject('is not JSON; correct it, and its placeholders');
  const parsed = CONFLIST.safeParse(json);
  if (!parsed.success) {
    const faults = parsed.error.issues.map(({ path, message }) => `${path.join('.') || 'it'}: ${message}`);
    return reject(`must be a list of plugins (name, plugins: [{type}, …]): ${faults.join('; ')}`);
  }
  const count = parsed.data.plugins.filter(({ type }) => type === PLUGIN_TYPE).length;
  if (count !== 1) return reject(`has ${count} plugins of type ${PLUGIN_TYPE}; it must have exactly one`);
  return parsed.data;
}

/** Applies the settings for the MTU and the node name to the shipped configuration. */
export function applySettings(shipped: Conflist, { mtuBytes, nodeName }: ConflistSettings): Conflist {
  const keys = { ...(mtuBytes === 0 ? {} : { mtu: mtuBytes }), ...(nodeName === '' ? {} : { nodename: nodeName }) };
  const plugins = shipped.plugins.map((member) => (member.type === PLUGIN_TYPE ? { ...member, ...keys } : member));
  return { ...shipped, plugins };
}

interface ConflistSettings {
  readonly mtuBytes: number;
  readonly nodeName: string;
}

/**
 * Merges the desired configuration into our `existing` file and keeps foreign chain members and keys. Each foreign member
 * stays behind its predecessor. Idempotent.
 */
export function mergeConflists(desired: Conflist, existing: Conflist): Conflist {
  const plugins = [...desired.plugins];
  let previous: ChainMember | undefined;
  for (const member of existing.plugins) {
    const own = desired.plugins.find(({ type }) => type === member.type);
    if (own === undefined) plugins.splice(previous === undefined ? 0 : plugins.indexOf(previous) + 1, 0, member);
    previous = own ?? member;
  }
  const kept = Object.entries(existing).filter(([key]) => key !== 'cniVersion' && key !== 'cniVersions');
  return withOneLimiter({ ...Object.fromEntries(kept), ...desired, plugins });
}

/** Name of a capability, and of the program that has it in other chains. */
const BANDWIDTH = 'bandwidth';

/**
 * Takes the capability `bandwidth` from Podwire's member where the program `bandwidth` is in the chain: the program cannot add its
 * root qdisc to an interface that has Podwire's.
 */
export function withOneLimiter(conflist: Conflist): Conflist {
  if (!conflist.plugins.some(({ type }) => type === BANDWIDTH)) return conflist;
  const plugins = conflist.plugins.map((member) => {
    const capabilities = CAPABILITIES.safeParse(member.capabilities).data;
    if (member.type !== PLUGIN_TYPE || !capabilities) return member;
    const kept = Object.entries(capabilities).filter(([name]) => name !== BANDWIDTH);
    return { ...member, capabilities: Object.fromEntries(kept) };
  });
  return { ...conflist, plugins };
}

const CAPABILITIES = z.record(z.string(), z.unknown());

/** Types of the members that the desired configuration lacks. */
export function foreignTypes(desired: Conflist, actual: Conflist): string[] {
  return actual.plugins.map(({ type }) => type).filter((type) => !desired.plugins.some((own) => own.type === type));
}

/** The file's text. */
export function writeConflist(conflist: Conflist): string {
  const { cniVersion, cniVersions, name, ...rest } = conflist;
  return `${JSON.stringify({ cniVersion, cniVersions, name, ...rest }, null, 2)}\n`;
}

/** The podwire plugin's configuration, as a runtime passes it to STATUS. */
export function statusRequest(conflist: Conflist): string {
  const member = conflist.plugins.find(({ type }) => type === PLUGIN_TYPE);
  return JSON.stringify({ ...member, name: conflist.name, cniVersion: STATUS_VERSION });
}

/** The version of the specification that introduced STATUS. */
const STATUS_VERSION = '1.1.0';

/** A file in the directory of network configurations. */
interface ConfigFile {
  readonly name: string;
  readonly content: ParsedConflist;
}

/** The file endings that libcni and container runtimes load. */
const LOADED = /\.(conf|conflist|json)$/;

/** Whether a runtime would load the file. */
export function isLoaded(name: string): boolean {
  return LOADED.test(name);
}

/**
 * Warnings about foreign files beside our configuration. Runtimes load the first file in alphabetical order, so an
 * earlier file takes effect instead of ours. Calico's installer restores its own file.
 * @param ours - name of our file, which need not be among the files
 */
export function conflictWarnings(files: readonly ConfigFile[], ours: string): string[] {
  return files.flatMap(({ name, content }) => {
    if (name === ours || !isLoaded(name)) return [];
    const warnings: string[] = [];
    if (name < ours) {
      warnings.push(
        `${name} comes before ${ours}, so container runtimes use it instead: remove it, or set CNI_CONF_NAME`,
      );
    }
    if (content.kind === 'foreign' && content.types.some((type) => type.startsWith('calico'))) {
      warnings.push(`${name} is Calico’s: remove it and Calico’s installer, or set CNI_OLD_CONF_NAME=${name}`);
    }
    if (content.kind === 'ours') {
      warnings.push(`${name} has a podwire plugin too: remove it, or set CNI_OLD_CONF_NAME=${name}`);
    }
    return warnings;
  });
}

/** Names of the shim: as the plugin, and as the IPAM plugin of another plugin. */
export const BINARY_NAMES = ['podwire', 'podwire-ipam'] as const;

/** Permissions of a program that container runtimes run. */
export const BINARY_MODE = 0o755;

/** Text in the shim of every release (shim/src/main.cc). */
const SHIM_MARK = 'podwire: CNI plugin; hands each call to podwire-node';

/** Whether a program is Podwire's shim, of any release. Does not run it. */
export function isShim(bytes: Buffer): boolean {
  return bytes.includes(SHIM_MARK);
}
