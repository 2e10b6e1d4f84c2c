import type { ForeignEndpoint } from '../endpoint.js';
import { field, isAbsent, parseHostAddress, readTime, Unreadable, type Field } from './fields.js';
import { formatJson, isArray, isObject, type JsonObject } from './json.js';

/** Network of an attachment with addresses of another IPAM plugin. Other releases take its endpoint for another writer's. */
export const WIRED_NETWORK = 'podwire.dev/wired-network';

/** Reads the valid fields. Another writer's endpoint is never unreadable. */
export function decodeForeignEndpoint(raw: JsonObject): ForeignEndpoint {
  const spec = isObject(raw.spec) ? raw.spec : {};
  const metadata = isObject(raw.metadata) ? raw.metadata : {};
  const networks = spec.ipNetworks;
  const network = isObject(metadata.annotations) ? textOf(metadata.annotations, WIRED_NETWORK) : '';
  return {
    ...(network !== '' && { network }),
    nodeName: textOf(spec, 'node'),
    containerId: textOf(spec, 'containerID'),
    interfaceName: textOf(spec, 'endpoint'),
    podName: textOf(spec, 'pod'),
    addresses: (isArray(networks) ? networks : []).flatMap((value) => {
      const address = typeof value === 'string' ? parseHostAddress(value) : undefined;
      return address ? [address] : [];
    }),
    uid: textOf(metadata, 'uid'),
    createTimeMs: timeOf(field(metadata, 'creationTimestamp')),
    mac: textOf(spec, 'mac'),
    hostInterfaceName: textOf(spec, 'interfaceName'),
    // Formatted on demand, which is rare. The JSON is kept anyway.
    get stored() {
      return formatJson(raw);
    },
  };
}

function textOf(fields: JsonObject, name: string): string {
  const { value } = field(fields, name);
  return typeof value === 'string' ? value : '';
}

function timeOf(source: Field): number | undefined {
  if (isAbsent(source)) return undefined;
  try {
    return readTime(source);
  } catch (error) {
    if (error instanceof Unreadable) return undefined;
    throw error;
  }
}
