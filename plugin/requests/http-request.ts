import type { IncomingHttpHeaders } from 'node:http';

import { Failure } from '@podwire/shared/failure/failure';

import { VARIABLES, type Variable, type Variables } from '../cni/environment.js';
import type { CniRequest } from './request.js';

/** The headers that carry the CNI variables. */
const HEADER: Readonly<Record<Variable, string>> = {
  CNI_COMMAND: 'cni-command',
  CNI_CONTAINERID: 'cni-containerid',
  CNI_NETNS: 'cni-netns',
  CNI_IFNAME: 'cni-ifname',
  CNI_ARGS: 'cni-args',
  CNI_PATH: 'cni-path',
};

/** Fields that the headers of a request do not have. */
type Rest = Pick<CniRequest, 'configuration' | 'arrivedNs' | 'cancel' | 'isSpooled'>;

/** The command that a request of the shim carries. @param headers - by name in lower case, decoded as ISO 8859-1 */
export function cniRequestOf(headers: IncomingHttpHeaders, rest: Rest): CniRequest {
  return {
    plugin: textOf(headers, 'cni-plugin'),
    shimRelease: textOf(headers, 'podwire-release'),
    variables: variablesOf(headers),
    overridesNetns: isTrue(textOf(headers, 'cni-netns-override')),
    traceContext: {
      traceparent: textOf(headers, 'traceparent'),
      tracestate: textOf(headers, 'tracestate'),
      baggage: textOf(headers, 'baggage'),
    },
    isStrict: isTrue(textOf(headers, 'podwire-strict')),
    startedNs: startOf(headers),
    ...rest,
  };
}

function variablesOf(headers: IncomingHttpHeaders): Variables {
  return Object.fromEntries(VARIABLES.map((variable) => [variable, textOf(headers, HEADER[variable])]));
}

/** A header as UTF-8, as the shim sends it. Node.js decodes headers as ISO 8859-1. */
function textOf(headers: IncomingHttpHeaders, name: string): string | undefined {
  const value = headers[name];
  return typeof value === 'string' ? Buffer.from(value, 'latin1').toString() : undefined;
}

/** The spellings that Go's plugin library accepts. */
function isTrue(text: string | undefined): boolean {
  return text === '1' || text?.toUpperCase() === 'TRUE';
}

function startOf(headers: IncomingHttpHeaders): bigint | undefined {
  const text = textOf(headers, 'cni-exec-time') ?? '';
  return /^\d{1,20}$/.test(text) ? BigInt(text) : undefined;
}

/** The shim's limit too (kMaxConfigurationBytes, shim/src/protocol.h). */
export const MAX_BODY_BYTES = 4 * 1024 * 1024;

const UTF8 = new TextDecoder('utf-8', { fatal: true });

/** The body of a request as text. @returns why it is none */
export function decodeBody(bytes: Uint8Array): string | Failure {
  try {
    return UTF8.decode(bytes);
  } catch (cause) {
    return new Failure('CONFIG_NOT_JSON', 'the network configuration is not UTF-8, so it is not JSON', { cause });
  }
}
