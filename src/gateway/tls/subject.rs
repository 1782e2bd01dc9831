//! Whom a certificate is for, as text.

use crate::call::Certificate;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::io;
use std::net::IpAddr;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// Reads a certificate that was found valid.
///
/// # Errors
/// `InvalidData` where it isn't one after all, or its names can't be told without doubt.
pub(super) fn certificate(der: &[u8]) -> io::Result<Certificate> {
    let (_, parsed) = X509Certificate::from_der(der).map_err(|error| invalid(&error.to_string()))?;
    let names = parsed.subject_alternative_name().map_err(|error| invalid(&error.to_string()))?;
    let names = names.iter().flat_map(|names| &names.value.general_names).filter_map(alternative).collect();
    Ok(Certificate { subject: subject(parsed.subject())?, names, fingerprint: Sha256::digest(der).into() })
}

/// A distinguished name as RFC 4514 writes it: in reverse, and escaped, so that no value can pass for another attribute.
fn subject(name: &X509Name<'_>) -> io::Result<String> {
    let sets: Vec<_> = name.iter_rdn().collect();
    let mut written = String::new();
    for (place, set) in sets.into_iter().rev().enumerate() {
        for (part, attribute) in set.iter().enumerate() {
            match (place, part) {
                (0, 0) => {}
                (_, 0) => written.push(','),
                _ => written.push('+'),
            }
            write_attribute(attribute, &mut written)?;
        }
    }
    Ok(written)
}

fn write_attribute(attribute: &AttributeTypeAndValue<'_>, out: &mut String) -> io::Result<()> {
    match oid2abbrev(attribute.attr_type(), oid_registry()) {
        Ok(short) => out.push_str(short),
        Err(_) => out.push_str(&attribute.attr_type().to_id_string()),
    }
    out.push('=');
    let value = attribute.as_str().map_err(|_| invalid("a part of the subject's name isn't text"))?;
    let last = value.chars().count().saturating_sub(1);
    for (place, c) in value.chars().enumerate() {
        match c {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=' => out.extend(['\\', c]),
            '#' if place == 0 => out.push_str("\\#"),
            ' ' if place == 0 || place == last => out.push_str("\\ "),
            c if c.is_control() => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| write_hex(byte, out)),
            c => out.push(c),
        }
    }
    Ok(())
}

fn write_hex(byte: u8, out: &mut String) {
    write!(out, "\\{byte:02X}").expect("invariant: a string takes everything");
}

/// An alternative name with its kind; kinds that nobody could compare are left out.
fn alternative(name: &GeneralName<'_>) -> Option<String> {
    Some(match name {
        GeneralName::DNSName(name) => format!("DNS:{name}"),
        GeneralName::URI(uri) => format!("URI:{uri}"),
        GeneralName::RFC822Name(address) => format!("email:{address}"),
        GeneralName::IPAddress(bytes) => format!("IP:{}", address(bytes)?),
        _ => return None,
    })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the client's certificate: {message}"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    #[test]
    fn a_certificate_s_names_are_read_with_their_kinds() {
        let mut params = CertificateParams::new(vec!["ci.acme.example".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI("spiffe://acme.example/ci".try_into().unwrap()));
        params.subject_alt_names.push(SanType::Rfc822Name("ci@acme.example".try_into().unwrap()));
        params.subject_alt_names.push(SanType::IpAddress([10, 0, 0, 7].into()));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CountryName, "DE");
        params.distinguished_name.push(DnType::OrganizationName, "Acme");
        params.distinguished_name.push(DnType::CommonName, "ci");
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let read = certificate(der.der()).unwrap();
        assert_eq!(read.subject, "CN=ci,O=Acme,C=DE");
        assert_eq!(read.names, ["DNS:ci.acme.example", "URI:spiffe://acme.example/ci", "email:ci@acme.example", "IP:10.0.0.7"]);
        assert_eq!(read.fingerprint, <[u8; 32]>::from(Sha256::digest(der.der())));
    }

    #[test]
    fn a_name_can_t_pass_for_another_by_what_is_in_it() {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, " guest,CN=admin+O=\"x\"\\\n");
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(certificate(der.der()).unwrap().subject, r#"CN=\ guest\,CN\=admin\+O\=\"x\"\\\0A"#);
    }

    #[test]
    fn what_is_no_certificate_has_no_names() {
        assert_eq!(certificate(b"no certificate").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
