import type { AuditRequest, AuditResponse } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { formatPageToken } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import { auditScope, findingMessage, readAuditRequest, summaryMessage } from '../audit/audit-rpc.js';
import type { Ipam } from '../ipam.js';

export function audit(ipam: Ipam): Handler<AuditRequest, AuditResponse> {
  return async (message, { signal }) => {
    const report = await ipam.audits.audit(readAuditRequest(message), signal);
    const last = report.findings.at(-1);
    return {
      findings: report.findings.map(findingMessage),
      nextPageToken: report.more && last ? formatPageToken(auditScope(message), last.id) : '',
      summary: summaryMessage(report),
    };
  };
}
