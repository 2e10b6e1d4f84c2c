import { Failure } from '@podwire/shared/failure/failure';

import type { Conflist } from './conflist.js';

/** An additional program to install, such as `portmap`. */
export interface ExtraProgram {
  readonly name: string;
  /** Source file. */
  readonly path: string;
}

/** The desired installation. */
export interface InstallSpec {
  /** Paths as this process sees them, below PODWIRE_INSTALL_ROOT. */
  readonly binaryDirectory: string;
  readonly configDirectory: string;
  /** The programs' directory as the container runtime sees it. */
  readonly runtimeBinaryDirectory: string;
  readonly shim: Buffer;
  /** Names under which the shim is installed. */
  readonly binaries: readonly string[];
  /** Whether an existing shim of another release is replaced. */
  readonly updatesBinaries: boolean;
  /** Installed if missing. */
  readonly programs: readonly ExtraProgram[];
  readonly conflistName: string;
  readonly conflist: Conflist;
  /** Permission bits. */
  readonly conflistMode: number;
  /** Name of a network configuration to remove after ours is installed. */
  readonly oldConfName: string | undefined;
}

/**
 * Placeholders of Calico's template that Podwire does not use: the plugin ignores their keys. Credentials are never written, as
 * the file is copied elsewhere in plain text.
 */
const IGNORED_PLACEHOLDERS = [
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

/** Placeholders for environment variables that Kubernetes sets. */
const FROM_ENVIRONMENT = ['KUBERNETES_SERVICE_HOST', 'KUBERNETES_SERVICE_PORT', 'KUBERNETES_SERVICE_PROTOCOL'] as const;

interface PlaceholderSources {
  readonly mtuBytes: number;
  readonly nodeName: string;
  readonly logLevel: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}

/** The value of every placeholder. Ignored ones are empty, or 0 where Calico's template has a number. */
export function placeholderValues({ mtuBytes, nodeName, logLevel, env }: PlaceholderSources): PlaceholderValues {
  return {
    CNI_MTU: String(mtuBytes),
    KUBERNETES_NODE_NAME: nodeName,
    LOG_LEVEL: logLevel,
    ...Object.fromEntries(FROM_ENVIRONMENT.map((name) => [name, env[name] ?? ''])),
    ...Object.fromEntries(IGNORED_PLACEHOLDERS.map((name) => [name, name.startsWith('LOG_FILE_MAX_') ? '0' : ''])),
  };
}

/** Placeholders of a template that Podwire ignores, for a warning. */
export function ignoredPlaceholders(template: string): string[] {
  return IGNORED_PLACEHOLDERS.filter((name) => template.includes(`__${name}__`));
}

/** Values by name: `CNI_MTU` is the value of `__CNI_MTU__`. */
type PlaceholderValues = Readonly<Record<string, string>>;

/** A whole JSON string, or a placeholder outside of one. */
const STRING_OR_PLACEHOLDER = /"(?:[^"\\]|\\.)*"|__[A-Z][A-Z0-9_]*?__/gs;

const PLACEHOLDER = /__([A-Z][A-Z0-9_]*?)__/g;

/**
 * Replaces the placeholders of a network configuration. No value can change the rest of the text: inside a string it is
 * escaped; elsewhere a number, true or false is inserted as it is, and anything else as a string.
 * @throws Failure INSTALL_REFUSED that names every placeholder without a value
 */
export function fillPlaceholders(template: string, values: PlaceholderValues): string {
  const names = [...template.matchAll(PLACEHOLDER)].flatMap(([, name]) => name ?? []);
  const unknown = [...new Set(names.filter((name) => !Object.hasOwn(values, name)))];
  if (unknown.length > 0) {
    const list = unknown.map((name) => `__${name}__`).join(', ');
    throw new Failure(
      'INSTALL_REFUSED',
      `the network configuration has placeholders without a value: ${list}; use only ${Object.keys(values).join(', ')}`,
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
