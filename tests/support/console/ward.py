"""A ward for tests of the console: roles, a stream, a view, and an emergency that opens more.

Nurses read vitals for care; Dr Frey reads them in an emergency alone, with the pulse as it is.
Whoever may write `ward/PATIENT/alarm` moves the plan on by its payload: `{"grade": 1}` and so on.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any, Final

from tests.support.console.installation import DEFINITIONS, PASSWORDS, ConsoleInstallation

USERS: Final = {**PASSWORDS, "frey": "pw-frey", "nina": "pw-nina", "omar": "pw-omar"}
WARD: Final = (
    DEFINITIONS
    + """
---
kind: vocabulary
name: ward
subject: {uid: string, onDuty: bool}
object: {patientId: string}
payload: {grade: int, pulse: int}
---
kind: object
name: ward
topics: "ward/+patientId/#"
---
kind: purpose
name: care
---
kind: purpose
name: research
---
kind: stream
name: vitals
format: json
from: ["ward/+patient/vitals"]
subject: patient
fields:
- {name: patient, type: string}
- {name: pulse, type: int}
- {name: oxygen, type: int}
---
kind: reservation
name: "ward/#"
allow: [care]
---
kind: enforcement
name: default
policies: required
---
kind: role
name: nurse
description: Cares for the patients of a ward.
claim: [care]
permissions: [{stream: vitals}]
---
kind: role
name: ward-head
includes: [nurse]
---
kind: group
name: night-shift
members: ["user:nina", "user:omar"]
---
kind: user
name: nina
---
kind: user
name: omar
roles: [ward-head]
---
kind: user
name: piet
blocked: true
---
kind: attributes
name: user:omar
values: {onDuty: true}
---
kind: policy
name: pumps-write
subject: user:pump
allow: write
filter: "ward/#"
---
kind: policy
name: nurses-read
subject: role:nurse
allow: read
filter: "ward/#"
---
kind: transformation
name: coarse-pulse
filter: "ward/+/vitals"
stream: vitals
except_during: {plan: oxygen, about: o.patientId}
anonymizers: [{anonymizer: bucketizing, keys: [pulse], bucket_size: 10}]
---
kind: view
name: study
stream: vitals
roles: [nurse]
anonymizers:
- {anonymizer: suppression, keys: [patient]}
- {anonymizer: bucketizing, keys: [pulse], bucket_size: 10}
---
kind: event
name: Dropping
attributes: {patient: string}
packet:
  when: has(t.payload.grade) && t.payload.grade == 1
  set: {patient: o.patientId}
---
kind: event
name: Critical
attributes: {patient: string}
packet:
  when: has(t.payload.grade) && t.payload.grade == 2
  set: {patient: o.patientId}
---
kind: event
name: Recovered
attributes: {patient: string}
packet:
  when: has(t.payload.grade) && t.payload.grade == 0
  set: {patient: o.patientId}
---
kind: plan
name: oxygen
description: How a patient may run out of oxygen.
situations:
- {id: Low, level: 1, description: Little oxygen in the blood.}
- {id: Critical, level: 2, description: Life is in danger.}
evolutions:
- {event: Dropping, to: Low}
- {event: Critical, from: Low, to: Critical}
- {event: Recovered, from: Critical, to: Low}
- {event: Recovered, from: Low}
---
kind: scenario
name: oxygen
plan: oxygen
attribute: patient
---
kind: emergency-policy
name: doctor-on-call
description: The doctor on call sees who is in danger.
subject: user:frey
filter: "ward/#"
allow: read
plan: oxygen
situations: [Low, Critical]
about: o.patientId
---
kind: right
name: watchers
subjects: [user:auditor]
monitor: ["$console/access"]
---
kind: right
name: break-the-glass
subjects: [user:nurse, user:frey]
monitor: ["$console/emergencies"]
break_glass: [oxygen]
"""
)


def publish(ward: ConsoleInstallation, topic: str, **payload: Any) -> None:
    """Publish as the pump does."""
    subprocess.run(
        [
            "mosquitto_pub", "-h", "127.0.0.1", "-p", str(ward.mqtt_port), "-q", "1",
            "-i", "pump", "-u", "pump", "-P", USERS["pump"], "-t", topic, "-m", json.dumps(payload),
        ],
        check=True,
        timeout=60,
    )  # fmt: skip


def subscribe(ward: ConsoleInstallation, user: str, purpose: str) -> subprocess.Popen[bytes]:
    """Read vitals as somebody, for a purpose."""
    return subprocess.Popen(
        [
            "mosquitto_sub", "-h", "127.0.0.1", "-p", str(ward.mqtt_port), "-V", "5",
            "-i", f"{user}:reader", "-u", user, "-P", USERS[user], "-t", "ward/+/vitals",
            "-D", "subscribe", "user-property", "purpose-ap", purpose,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
