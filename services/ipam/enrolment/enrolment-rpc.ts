import {
  EnrolmentServiceService,
  type EnrolmentServiceServer,
  type IssueNodeCertificateRequest,
  type IssueNodeCertificateResponse,
} from '@podwire/proto/podwire/ipam/v1/enrolment';
import { violationsFailure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { readChecked } from '@podwire/shared/requests/checks';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Handler, Unary } from '@podwire/shared/rpc/unary';
import type { Logger } from '@podwire/shared/runtime/log';

import type { OwnAuthority } from './own-authority.js';

const MAX_REQUEST_BYTES = 4096;
const MAX_TOKEN_LENGTH = 16_384;

export interface EnrolmentDeps {
  readonly authority: Pick<OwnAuthority, 'issueForNode'>;
  /** The node that a token proves. @throws Failure ACCESS_DENIED, UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED */
  readonly nodeOfToken: (token: string, signal: AbortSignal) => Promise<string>;
  readonly log: Logger;
}

export function enrolmentService(deps: EnrolmentDeps, unary: Unary): RpcService {
  const implementation: EnrolmentServiceServer = {
    issueNodeCertificate: unary(EnrolmentServiceService.issueNodeCertificate, issueHandler(deps)),
  };
  return { name: 'podwire.ipam.v1.EnrolmentService', definition: EnrolmentServiceService, implementation };
}

function issueHandler({
  authority,
  nodeOfToken,
  log,
}: EnrolmentDeps): Handler<IssueNodeCertificateRequest, IssueNodeCertificateResponse> {
  return async ({ certificateSigningRequest, token }, { signal }) => {
    readChecked('IssueNodeCertificate', (checks) => {
      const { length } = certificateSigningRequest;
      if (length === 0 || length > MAX_REQUEST_BYTES)
        checks.check('certificate_signing_request', `has ${length} bytes; 1 to ${MAX_REQUEST_BYTES} are allowed`);
      if (token.length > MAX_TOKEN_LENGTH || !/^[\w.-]+$/.test(token))
        checks.check('token', 'is not a token of a service account');
    });
    const nodeName = await nodeOfToken(token, signal);
    const issued = await authority.issueForNode(nodeName, certificateSigningRequest).catch((error: unknown) => {
      const reason = `is not a signing request (PKCS #10) of an ECDSA key on the curve P-256: ${messageOf(error)}`;
      throw violationsFailure('INVALID_REQUEST', 'IssueNodeCertificate refused', [
        { field: 'certificate_signing_request', reason },
      ]);
    });
    log.info({ 'podwire.node': nodeName }, `issued a certificate to node "${nodeName}"`);
    return issued;
  };
}
