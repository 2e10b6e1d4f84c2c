import { Failure } from '@podwire/shared/failure/failure';

import type { Conflist } from './conflist.js';

/** A program that was given to the installer, such as `portmap`. */
export interface GivenProgram {
  readonly name: string;
  /** Where it is taken from. */
  readonly path: string;
}

/** What an installation is to leave behind, and where. */
export interface Wanted {
  /** Where the files are seen by this process. */
  readonly binaryDirectory: string;
  readonly configDirectory: string;
  /** Where programs are for the container runtime. */
  readonly runtimeBinaryDirectory: string;
  /** The shim, and the names that it gets. */
  readonly shim: Buffer;
  readonly binaries: readonly string[];
  /** Whether a program that is there, and works, is replaced by one of another release. */
  readonly updatesBinaries: boolean;
  /** Other programs that are put in place where they are missing. */
  readonly programs: readonly GivenProgram[];
  readonly conflistName: string;
  readonly conflist: Conflist;
  /** Permission bits. */
  readonly conflistMode: number;
  /** Name of a network configuration that goes once ours is in place; undefined when there is none. */
  readonly oldConfName: string | undefined;
}

/**
 * What Calico's template of a network configuration also has placeholders for, and Podwire has no use for: the plugin lets the
 * keys pass. A credential is never written: the file is copied to other places in clear.
 */
const MEANINGLESS = [
  'CALICO_API_GROUP',
  'DATASTORE_TYPE',
  'ETCD_CA_CERT_FILE',
  'ETCD_CERT_FILE',
  'ETCD_DISCOVERY_SRV',
  'ETCD_ENDPOINTS',
  'ETCD_KEY_FILE',
  'KUBECONFIG_FILEPATH',
  'KUBECONFIG_FILENAME',
  'LOG_FILE_MAX_AGE',
  'LOG_FILE_MAX_COUNT',
  'LOG_FILE_MAX_SIZE',
  'LOG_FILE_PATH',
  'SERVICEACCOUNT_TOKEN',
] as const;

/** Placeholders whose value is an environment variable that Kubernetes sets. */
const FROM_ENVIRONMENT = ['KUBERNETES_SERVICE_HOST', 'KUBERNETES_SERVICE_PORT', 'KUBERNETES_SERVICE_PROTOCOL'] as const;

interface PlaceholderSources {
  readonly mtuBytes: number;
  readonly nodeName: string;
  readonly logLevel: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}

/** The value of every placeholder that there is; those without a meaning are empty, or 0 where Calico's template has a number. */
export function placeholderValues({ mtuBytes, nodeName, logLevel, env }: PlaceholderSources): PlaceholderValues {
  return {
    CNI_MTU: String(mtuBytes),
    KUBERNETES_NODE_NAME: nodeName,
    LOG_LEVEL: logLevel,
    ...Object.fromEntries(FROM_ENVIRONMENT.map((name) => [name, env[name] ?? ''])),
    ...Object.fromEntries(MEANINGLESS.map((name) => [name, name.startsWith('LOG_FILE_MAX_') ? '0' : ''])),
  };
}

/** The placeholders of a template that stand for nothing, for a warning. */
export function meaninglessPlaceholders(template: string): string[] {
  return MEANINGLESS.filter((name) => template.includes(`__${name}__`));
}

/** What placeholders stand for: `__CNI_MTU__` has the value of `CNI_MTU`. */
type PlaceholderValues = Readonly<Record<string, string>>;

/** A whole JSON string, or a placeholder outside of one. */
const STRING_OR_PLACEHOLDER = /"(?:[^"\\]|\\.)*"|__[A-Z][A-Z0-9_]*?__/gs;

const PLACEHOLDER = /__([A-Z][A-Z0-9_]*?)__/g;

/**
 * Fills the placeholders of a network configuration, so that no value can change what the rest of the text means: inside a
 * string the value is escaped; elsewhere a number, true or false stays what it is, and anything else becomes a string.
 * @throws Failure INSTALL_REFUSED that names every placeholder without a value
 */
export function fillPlaceholders(template: string, values: PlaceholderValues): string {
  const names = [...template.matchAll(PLACEHOLDER)].flatMap(([, name]) => name ?? []);
  const unknown = [...new Set(names.filter((name) => !Object.hasOwn(values, name)))];
  if (unknown.length > 0) {
    const list = unknown.map((name) => `__${name}__`).join(', ');
    throw new Failure(
      'INSTALL_REFUSED',
      `the network configuration has placeholders without a value: ${list}; known are ${Object.keys(values).join(', ')}`,
    );
  }
  const escaped = (name: string): string => JSON.stringify(values[name]).slice(1, -1);
  const literal = (name: string): string => asLiteral(values[name] ?? '');
  return template.replace(STRING_OR_PLACEHOLDER, (found) =>
    found.startsWith('"')
      ? found.replace(PLACEHOLDER, (_, name: string) => escaped(name))
      : found.replace(PLACEHOLDER, (_, name: string) => literal(name)),
  );
}

function asLiteral(value: string): string {
  return /^(-?(0|[1-9]\d*)(\.\d+)?|true|false)$/.test(value) ? value : JSON.stringify(value);
}
