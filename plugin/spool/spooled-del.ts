import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import { cniRequestOf, decodeBody } from '../requests/http-request.js';
import { readDelRequest, type CniRequest } from '../requests/request.js';
import { spoolName, type SpooledFile } from './spool-directory.js';

const REQUEST_LINE = 'POST /cni HTTP/1.1';
const HEAD_END = '\r\n\r\n';
const SEPARATOR = ': ';

export interface SpooledDel {
  readonly attachment: Attachment;
  readonly request: CniRequest;
}

/**
 * The DEL in a file of the spool, which holds the bytes that the shim would have sent to the socket.
 * @throws Failure why it cannot be replayed
 */
export function parseSpooledDel({ name, bytes, writtenNs }: SpooledFile): SpooledDel {
  const headBytes = bytes.indexOf(HEAD_END);
  const [requestLine, ...lines] = bytes.toString('latin1', 0, Math.max(headBytes, 0)).split('\r\n');
  const headers = Object.fromEntries(lines.map(parseHeader));
  const body = bytes.subarray(headBytes + HEAD_END.length);
  if (requestLine !== REQUEST_LINE || headers['content-length'] !== String(body.length))
    throw new Failure('INVALID_REQUEST', 'it is not a complete request of the shim');
  const configuration = decodeBody(body);
  if (configuration instanceof Failure) throw configuration;
  const cancel = new AbortController();
  const request = cniRequestOf(headers, { configuration, arrivedNs: writtenNs, cancel, isSpooled: true });
  const { CNI_COMMAND: command = '' } = request.variables;
  if (command !== 'DEL') throw new Failure('INVALID_REQUEST', `its command is ${JSON.stringify(command)}, not DEL`);
  const { attachment } = readDelRequest(request);
  if (spoolName(attachment) !== name)
    throw new Failure('INVALID_REQUEST', `its content is the DEL of another file, ${spoolName(attachment)}`);
  return { attachment, request };
}

function parseHeader(line: string): [string, string] {
  const at = line.indexOf(SEPARATOR);
  if (at < 1) throw new Failure('INVALID_REQUEST', 'a line of its head is not a header');
  return [line.slice(0, at).toLowerCase(), line.slice(at + SEPARATOR.length)];
}
