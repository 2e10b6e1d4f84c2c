import type { PlaceholderValues } from './template.js';

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

export interface PlaceholderSources {
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
