// DELs as the shim writes them to the spool.
import { mkdirSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { CONFIG, ENVIRONMENT } from './plugin.js';

export interface SpooledRequest {
  readonly command?: string;
  readonly containerId?: string;
  readonly interfaceName?: string;
  readonly configuration?: string;
  /** Start of the shim, in epoch nanoseconds. */
  readonly startedNs?: bigint;
  /** Other headers, each with its line end. */
  readonly headers?: string;
}

export function spooledRequest({
  command = 'DEL',
  containerId = ENVIRONMENT.CNI_CONTAINERID,
  interfaceName = ENVIRONMENT.CNI_IFNAME,
  configuration = JSON.stringify(CONFIG),
  startedNs = 1_700_000_000_000_000_000n,
  headers = '',
}: SpooledRequest = {}): string {
  const lines = [
    'POST /cni HTTP/1.1',
    'Host: podwire',
    `Content-Length: ${Buffer.byteLength(configuration)}`,
    `CNI-Exec-Time: ${startedNs}`,
    'Podwire-Release: 1',
    'CNI-Plugin: podwire',
    `CNI-Command: ${command}`,
    `CNI-ContainerID: ${containerId}`,
    `CNI-IfName: ${interfaceName}`,
  ];
  return `${lines.join('\r\n')}\r\n${headers}\r\n${configuration}`;
}

/** Writes a file of the spool by rename. @returns its name */
export function spoolDel(directory: string, request: SpooledRequest = {}, text = spooledRequest(request)): string {
  const { containerId = ENVIRONMENT.CNI_CONTAINERID, interfaceName = ENVIRONMENT.CNI_IFNAME } = request;
  const name = `${CONFIG.name},${containerId},${interfaceName}.del`;
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  writeFileSync(join(directory, `${name}.1.writing`), text, { mode: 0o600 });
  renameSync(join(directory, `${name}.1.writing`), join(directory, name));
  return name;
}
