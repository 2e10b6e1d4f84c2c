import { absolutePathFault, rpcAddressFault } from '@podwire/shared/settings/service-address';

import type { OutputFormat } from '../output/report.js';
import { durationMs, oneOf, text, type Form } from './forms.js';
import { flag, type Flag, type Option } from './verb.js';

/** The address of a service: from an option, else from an environment variable, else the default. */
export interface ServiceAddress extends Option<string> {
  /** The variable with which podwire-node is configured. */
  readonly variable: string;
  readonly defaultAddress: string;
}

function formOf(placeholder: string, faultOf: (input: string) => string | undefined): Form<string> {
  return {
    placeholder,
    read: (input) => {
      const fault = faultOf(input);
      return fault === undefined ? { ok: true, value: input } : { ok: false, fault };
    },
  };
}

function addressOption(
  name: string,
  rest: Pick<ServiceAddress, 'form' | 'variable' | 'defaultAddress'> & { readonly what: string },
): ServiceAddress {
  const { what, ...own } = rest;
  return { name, ...own, about: `address of ${what} (${rest.variable}; ${rest.defaultAddress})` };
}

const RPC = formOf('unix:PATH|HOST:PORT', rpcAddressFault);

/** The first RPC address that a process listens at. */
const FIRST_RPC: Form<string> = { ...RPC, read: (list) => RPC.read(list.split(',')[0]?.trim() ?? '') };

export const IPAM = addressOption('--ipam', {
  what: 'podwire-ipam',
  form: RPC,
  variable: 'PODWIRE_NODE_IPAM_ADDRESS',
  defaultAddress: 'unix:/run/podwire/ipam.sock',
});

/** A file of TLS: from an option, else from an environment variable, else none. */
export interface TlsFileOption extends Option<string> {
  /** The variable with which podwire-node is configured. */
  readonly variable: string;
}

function tlsFileOption(name: string, content: string, variable: string): TlsFileOption {
  return { name, form: text('FILE'), variable, about: `PEM file with ${content} (${variable})` };
}

/** TLS options for an address HOST:PORT of podwire-ipam. */
export const IPAM_TLS = {
  ca: tlsFileOption(
    '--ipam-ca',
    "the authorities of podwire-ipam's certificate, for an address HOST:PORT",
    'PODWIRE_NODE_IPAM_TLS_CA_FILE',
  ),
  certificate: tlsFileOption(
    '--ipam-cert',
    'the certificate that is shown to podwire-ipam: an operator may call everything, a reader may read',
    'PODWIRE_NODE_IPAM_TLS_CERT_FILE',
  ),
  key: tlsFileOption('--ipam-key', 'the key of that certificate', 'PODWIRE_NODE_IPAM_TLS_KEY_FILE'),
} as const;

/** Variable of podwire-node's pod with the token file, which replaces a certificate. */
export const IPAM_TOKEN_VARIABLE = 'PODWIRE_NODE_IPAM_TOKEN_FILE';

export const DATAPLANE = addressOption('--dataplane', {
  what: "the gRPC API of the node's podwire-node",
  form: FIRST_RPC,
  variable: 'PODWIRE_NODE_LISTEN',
  defaultAddress: 'unix:/run/podwire/dataplane.sock',
});

export const PLUGIN = addressOption('--plugin', {
  what: "the CNI socket of the node's podwire-node",
  form: formOf('PATH', absolutePathFault),
  variable: 'PODWIRE_NODE_CNI_SOCKET',
  defaultAddress: '/run/podwire/cni.sock',
});

export const OUTPUT: Option<OutputFormat> = {
  name: '--output',
  short: '-o',
  form: {
    ...oneOf<OutputFormat>({
      table: 'table',
      wide: 'wide',
      json: 'json',
      yaml: 'yaml',
      name: 'name',
      ps: 'table',
      yml: 'yaml',
    }),
    placeholder: 'table|wide|json|yaml|name',
  },
  about:
    "output format (table): yaml and json of get are manifests, of other commands the contract's messages in protobuf's JSON form",
};

export const TIMEOUT: Option<number> = {
  name: '--timeout',
  // Timers of Node.js are limited to 24 days.
  form: durationMs(1),
  about: 'timeout of the whole command, of each read with --watch, up to 1d (10s; 30s with --force)',
};

export const DEFAULT_TIMEOUT_MS = 10_000;

export const NO_HEADERS = flag('--no-headers', 'print tables without their headings');

/** Options that lead to a service. */
export const SERVICE_OPTIONS: readonly Option<string>[] = [
  IPAM,
  IPAM_TLS.ca,
  IPAM_TLS.certificate,
  IPAM_TLS.key,
  DATAPLANE,
  PLUGIN,
];

export const GLOBAL_OPTIONS: readonly Option<unknown>[] = [...SERVICE_OPTIONS, OUTPUT, TIMEOUT];
export const GLOBAL_FLAGS: readonly Flag[] = [NO_HEADERS];
