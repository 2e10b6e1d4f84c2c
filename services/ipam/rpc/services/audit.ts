import { AuditServiceService, type AuditServiceServer } from '@podwire/proto/podwire/ipam/v1/maintenance';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Ipam } from '../../ipam.js';
import { audit } from '../audit.js';
import { repair } from '../repair.js';

export function auditService(ipam: Ipam, unary: Unary): RpcService {
  const implementation: AuditServiceServer = {
    audit: unary(AuditServiceService.audit, audit(ipam)),
    repair: unary(AuditServiceService.repair, repair(ipam)),
  };
  return { name: 'podwire.ipam.v1.AuditService', definition: AuditServiceService, implementation };
}
